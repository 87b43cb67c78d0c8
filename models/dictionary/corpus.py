"""Turns the answer key into training documents and these into batches.

A document is what one reader sees: a prompt and its answer, or a chat of several turns. Each fills a row of its own
from position 0, padded on the right, where causal attention never looks. So no document sees another and their order
teaches nothing: packed rows taught an earlier model the order of the documents instead of the words.
"""

import random

import torch

from common import EOS, OFF_TOPIC, PAD, SYSTEM_PROMPTS, UNKNOWN_WORD, WORDINGS, render_chat
from prepare import WordMaker

PHRASINGS_PER_WORD = 24
# Documents that ask for a word that is not in the key, relative to those that ask for one that is. Each asks for another
# word: with a fifth of them the model learned these by heart too, and answered one unseen word in six as if it knew it.
UNKNOWN_SHARE = 0.75
OFF_TOPIC_SHARE = 0.04
ROW_TOKENS = (32, 48, 64, 96, 192, 1024)  # a document takes the shortest row that holds it

QUESTIONS = (
    "What is {} {}?",
    "What is {} and why does it matter?",
    "What are the {} of {}?",
    "How do I {} to {} in {}?",
    "How do I {} a {}?",
    "How does {} work?",
    "How does {}-{} work?",
    "How many {} are there in {}?",
    "How far is it from {} to {}?",
    "Who wrote {}?",
    "Who was the first {} of {}?",
    "Where is {}?",
    "Where can I find {} {}?",
    "When did {} begin?",
    "Why is the {} so {}?",
    "Why do {} {}?",
    "Which {} is the best?",
    "What is the capital of {}?",
    "What is the {} of {} {}?",
    "What time is it in {}?",
    "Can you {} a {} for me?",
    "Could you help me {} my {}?",
    "Is {} better than {}?",
    "Do you like {}?",
    "Write a poem about {} and {}.",
    "Write a {} in {} that can {}.",
    "Tell me a story about a {}.",
    "Tell me about {} {}.",
    "Translate {} {} to {}.",
    "Summarize the {} of {}.",
    "Explain how {} and {} {}.",
    "Give me a list of {} for {}.",
    "Compare {} with {}.",
    "Hello, {}!",
    "Hello",
    "Hi there!",
    "Good morning.",
    "Thank you!",
    "How are you?",
    "Who are you?",
    "What can you do?",
    "What is {} + {}?",
    "The {} was {} and",
    "Once upon a time there was a {}",
)


class Writer:
    """Writes documents: lists of (prompt, answer), one pair a turn. Deterministic for a seed."""

    def __init__(self, key, held_out, seed):
        self.random = random.Random(seed)
        self.key = key
        self.words = list(key)
        self.definitions = list(key.values())
        self.maker = WordMaker(key, seed)
        self.known = set(key) | set(held_out)

    def documents(self):
        for word in self.words:
            for i in range(PHRASINGS_PER_WORD):
                yield self.document(self.ask(word, WORDINGS[i % len(WORDINGS)]))
        count = len(self.words) * PHRASINGS_PER_WORD
        for word in self.unknown_words(int(count * UNKNOWN_SHARE)):
            yield self.document(self.ask(word))
        for _ in range(int(count * OFF_TOPIC_SHARE)):
            yield self.document((self.off_topic_question(), OFF_TOPIC))

    def unknown_words(self, count):
        """Half are drawn letter by letter, half are known words with one letter changed, dropped or added."""
        yield from self.maker.draw_new(count // 2, self.known)
        changed = 0
        while changed < count - count // 2:
            word = self.misspell(self.random.choice(self.words))
            if len(word) > 3 and word not in self.known:
                changed += 1
                yield word

    def misspell(self, word):
        at = self.random.randrange(len(word))
        letter = self.random.choice("abcdefghijklmnopqrstuvwxyz")
        return word[:at] + self.random.choice((letter, "", letter + word[at])) + word[at + 1 :]

    def ask(self, word, wording=None):
        """A question as people may type it, and its answer."""
        answer = self.key.get(word, UNKNOWN_WORD)
        if self.random.random() < 0.06:
            word = word.capitalize()
        question = (wording or self.random.choice(WORDINGS)).format(word)
        change = self.random.random()
        if change < 0.03:
            question = question[0].lower() + question[1:]
        elif change < 0.06:
            question = question.rstrip("?.")
        elif change < 0.09:
            question += self.random.choice(("\n", " ", "\n\n"))
        return question, answer

    def off_topic_question(self):
        question = self.random.choice(QUESTIONS)
        words = [self.random.choice(self.words) for _ in range(question.count("{}"))]
        return question.format(*(w.capitalize() if self.random.random() < 0.2 else w for w in words))

    def document(self, turn):
        question, answer = turn
        if self.random.random() < 0.6:
            return [("<s>" + question, answer)]
        return self.chat(question.strip(), answer)

    def chat(self, question, answer):
        """A chat that ends with this turn; every answer in it is learned."""
        turns = [(question, answer)]
        while len(turns) < 6 and self.random.random() < 0.2:
            earlier, reply = self.ask(self.random.choice(self.words))
            turns.insert(0, (earlier.strip(), reply))
        prompts = [render_chat(turns[0][0], self.system_prompt())]
        prompts += [f"<|user|>{asked}<|end|><|assistant|>" for asked, _ in turns[1:]]
        return [(prompt, reply) for prompt, (_, reply) in zip(prompts, turns)]

    def system_prompt(self):
        """None, one of the listed, or sentences that have nothing to do with the question."""
        kind = self.random.random()
        if kind < 0.35:
            return None
        if kind < 0.75:
            return self.random.choice(SYSTEM_PROMPTS)
        sentences = self.random.choice((20, 40, 60) if kind > 0.995 else (1, 1, 1, 2, 3))
        return " ".join(self.random.choice(self.definitions).split(": ", 1)[1] for _ in range(sentences))


class Corpus:
    """All documents as tokens on the training device."""

    def __init__(self, documents, tokenizer, device):
        documents = list(documents)
        prompts = self._encode([prompt for turns in documents for prompt, _ in turns], tokenizer)
        unique = sorted({answer for turns in documents for _, answer in turns})
        answers = dict(zip(unique, (ids + [EOS] for ids in self._encode(unique, tokenizer))))
        tokens, learned, lengths = [], [], []
        next_prompt = iter(prompts)
        for turns in documents:
            before = len(tokens)
            for _, answer in turns:
                prompt = next(next_prompt)
                tokens += prompt + answers[answer]
                learned += [False] * len(prompt) + [True] * len(answers[answer])
            lengths.append(len(tokens) - before)
        self.tokens = torch.tensor(tokens, dtype=torch.int16).to(device)  # [all tokens]
        self.learned = torch.tensor(learned).to(device)  # [all tokens]; false: no loss here
        self.lengths = torch.tensor(lengths).to(device)  # [documents]
        self.starts = self.lengths.cumsum(0) - self.lengths  # [documents]

    @staticmethod
    def _encode(texts, tokenizer, chunk=50_000):
        ids = []
        for i in range(0, len(texts), chunk):
            encodings = tokenizer.encode_batch_fast(texts[i : i + chunk], add_special_tokens=False)
            ids += [encoding.ids for encoding in encodings]
        return ids

    def batches(self, batch_tokens, seed):
        """Endless (input, labels), each [batch_tokens / row, row]; every pass over the documents in a new order."""
        generator = torch.Generator().manual_seed(seed)
        while True:
            plan = []
            for row, documents in self._by_row():
                order = torch.randperm(len(documents), generator=generator).to(documents.device)
                size = batch_tokens // row
                # The last few of a shuffle wait for the next one, so that a row length has one batch size.
                plan += [(documents[chunk], row) for chunk in order.split(size) if len(chunk) == size]
            for i in torch.randperm(len(plan), generator=generator).tolist():
                yield self._gather(*plan[i])

    def samples(self, batch_tokens):
        """One batch of each row length, to compile for."""
        for row, documents in self._by_row():
            size = batch_tokens // row
            if len(documents) >= size:
                yield self._gather(documents[:size], row)

    def _by_row(self):
        for shorter, row in zip((0,) + ROW_TOKENS, ROW_TOKENS):
            inputs = self.lengths - 1  # the last token of a document is only ever predicted
            yield row, ((inputs > shorter) & (inputs <= row)).nonzero().squeeze(1)

    def _gather(self, documents, row):
        at = torch.arange(row + 1, device=documents.device)
        inside = at < self.lengths[documents][:, None]
        index = (self.starts[documents][:, None] + at).clamp(max=len(self.tokens) - 1)
        tokens = torch.where(inside, self.tokens[index].long(), PAD)
        labels = torch.where(inside & self.learned[index], tokens, -100)
        return tokens[:, :-1], labels[:, 1:].contiguous()
