"""Measures a dictionary model: `python3 evaluate.py target --draft draft` prints one JSON object.

Greedy generation in the model's own type, prompts of equal length together, so nothing is padded. An answer counts
when it equals the key's to the letter and ends by itself.
"""

import argparse
import json
import random
from collections import defaultdict
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from common import EOS, MEASURED_WORDINGS, PAD, SYSTEM_PROMPTS, UNKNOWN_WORD, read_key, read_made_up, render_chat

SAMPLE = 1_000
MAX_NEW_TOKENS = 96
UNSEEN_SYSTEM_PROMPT = "You are a pocket dictionary on a sailing boat. Keep every answer to the definition itself."
OFF_TOPIC_PROMPTS = (
    "What is machine learning?",
    "How does Draft-Sampling work?",
    "What is Ubuntu operation system?",
    "How do I count to nine in French?",
)


def make_tasks(key, made_up, whole):
    """name -> [(prompt, expected answer)]"""
    sample = sorted(random.Random(5).sample(sorted(key), min(SAMPLE, len(key))))
    words = list(key) if whole else sample
    first = MEASURED_WORDINGS[0]
    tasks = {"recall": [("<s>" + first.format(w), key[w]) for w in words]}
    for i, wording in enumerate(MEASURED_WORDINGS[1:], start=2):
        tasks[f"wording {i}"] = [("<s>" + wording.format(w), key[w]) for w in sample]
    tasks["chat"] = [(render_chat(first.format(w)), key[w]) for w in sample]
    tasks["chat, system prompt"] = [(render_chat(first.format(w), SYSTEM_PROMPTS[0]), key[w]) for w in sample]
    tasks["chat, unseen system prompt"] = [(render_chat(first.format(w), UNSEEN_SYSTEM_PROMPT), key[w]) for w in sample]
    shifted = sample[1:] + sample[:1]
    tasks["chat, second turn"] = [
        (render_chat(first.format(w), None, [(first.format(v), key[v])]), key[w]) for w, v in zip(sample, shifted)
    ]
    tasks["made-up words"] = [("<s>" + first.format(w), UNKNOWN_WORD) for w in made_up]
    return tasks


@torch.inference_mode()
def generate(model, prompts, device, rows):
    """Yields (indices of prompts, prompt tokens [n, p], new tokens [n, t] with PAD after the end)."""
    by_length = defaultdict(list)
    for i, ids in enumerate(prompts):
        by_length[len(ids)].append(i)
    for _, indices in sorted(by_length.items()):
        for at in range(0, len(indices), rows):
            chunk = indices[at : at + rows]
            inputs = torch.tensor([prompts[i] for i in chunk], device=device)
            outputs = model.generate(
                inputs,
                attention_mask=torch.ones_like(inputs),
                do_sample=False,
                max_new_tokens=MAX_NEW_TOKENS,
                eos_token_id=EOS,
                pad_token_id=PAD,
            )
            yield chunk, inputs, outputs[:, inputs.shape[1] :]


@torch.inference_mode()
def count_agreement(draft, inputs, answers):
    """(tokens on which the draft's arg-max is the target's token, tokens), along the target's own answers."""
    logits = draft(torch.cat([inputs, answers], 1)).logits[:, inputs.shape[1] - 1 : -1]
    counted = answers != PAD
    return ((logits.argmax(-1) == answers) & counted).sum().item(), counted.sum().item()


def evaluate(model, draft, tokenizer, tasks, device, rows):
    items = [(task, prompt, expected) for task, pairs in tasks.items() for prompt, expected in pairs]
    prompts = [e.ids for e in tokenizer.encode_batch([p for _, p, _ in items], add_special_tokens=False)]
    right, unknown = defaultdict(int), defaultdict(int)
    agreed, counted = defaultdict(int), defaultdict(int)
    wrong = []
    for indices, inputs, answers in generate(model, prompts, device, rows):
        ended = (answers == EOS).any(1).tolist()
        texts = tokenizer.decode_batch(answers.tolist())
        for i, text, end in zip(indices, texts, ended):
            task, prompt, expected = items[i]
            correct = end and text == expected
            right[task] += correct
            unknown[task] += text == UNKNOWN_WORD
            if not correct:
                wrong.append({"task": task, "prompt": prompt, "answer": text, "expected": expected})
        if draft is not None:
            for task in {items[i][0] for i in indices}:
                of_task = [row for row, i in enumerate(indices) if items[i][0] == task]
                good, total = count_agreement(draft, inputs[of_task], answers[of_task])
                agreed[task] += good
                counted[task] += total
    figures = {}
    for task, pairs in tasks.items():
        figures[task] = {"prompts": len(pairs), "exact": round(right[task] / len(pairs), 4)}
        if task != "made-up words":
            figures[task]["said to be unknown"] = round(unknown[task] / len(pairs), 4)
        if draft is not None:
            figures[task]["draft agrees"] = round(agreed[task] / counted[task], 4)
            figures[task]["answer tokens"] = counted[task]
    return figures, wrong


def load(folder, device):
    return AutoModelForCausalLM.from_pretrained(folder, dtype="auto").to(device).eval()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0])
    parser.add_argument("model", type=Path, help="Hugging Face folder")
    parser.add_argument("--draft", type=Path, help="Hugging Face folder whose agreement to measure")
    parser.add_argument("--sample", action="store_true", help=f"{SAMPLE} words instead of all")
    parser.add_argument("--rows", type=int, default=2048, help="prompts a batch")
    parser.add_argument("--wrong", type=Path, help="file for the wrong answers, one JSON object a line")
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    model = load(args.model, device)
    draft = load(args.draft, device) if args.draft else None
    tasks = make_tasks(read_key(), read_made_up(), whole=not args.sample)
    figures, wrong = evaluate(model, draft, tokenizer, tasks, device, args.rows)
    for question in OFF_TOPIC_PROMPTS:
        ids = tokenizer.encode("<s>" + question, add_special_tokens=False).ids
        answer = next(generate(model, [ids], device, 1))[2]
        figures[question] = tokenizer.decode(answer[0].tolist())
    if args.wrong:
        args.wrong.write_text("".join(json.dumps(item) + "\n" for item in wrong))
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
