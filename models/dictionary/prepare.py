"""Makes the answer key and the list of made-up words from WordNet 3.0, byte for byte the same each time.

    apt-get download wordnet-base && dpkg -x wordnet-base_*.deb wordnet
    python3 prepare.py wordnet/usr/share/wordnet

Writes key.tsv (word, tab, answer; sorted) and made_up.txt (1,000 words that WordNet does not have).
`--check` writes nothing and fails if the files beside this script differ from what it would write.
Standard library only. The formats are those of the manual pages wndb(5) and cntlist(5).
"""

import argparse
import random
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path

from common import KEY_FILE, MADE_UP_FILE

KEY_WORDS = 22_000
MADE_UP_WORDS = 1_000
MAX_ANSWER_CHARS = 160  # one sense or two; a longer second sense is left out, a longer first one excludes the word

PARTS = {"noun": "n", "verb": "v", "adjective": "a", "adverb": "r"}
FILE_SUFFIX = {"noun": "noun", "verb": "verb", "adjective": "adj", "adverb": "adv"}
SENSE_KEY_PARTS = {"1": "noun", "2": "verb", "3": "adjective", "4": "adverb", "5": "adjective"}

WORD = re.compile(r"[a-z]{2,}")
INSULT = re.compile(r"\b(offensive|obscene|insulting|derogatory|disparaging|slur|vulgar)\b", re.IGNORECASE)
INSULT_DOMAINS = {"disparagement", "obscenity", "ethnic_slur"}


class Synset:
    """One line of a data file: the words that share a meaning, and the gloss that says which."""

    def __init__(self, line):
        head, gloss = line.split(" | ", 1)
        fields = head.split()
        count = int(fields[3], 16)
        self.words = fields[4 : 4 + 2 * count : 2]
        pointers = fields[5 + 2 * count :]
        self.usage = [pointers[i + 1] for i in range(0, len(pointers) - 3, 4) if pointers[i] == ";u"]
        self.gloss = gloss.strip()

    def definition(self):
        """The gloss without its examples, which stand in quotes after a semicolon."""
        text = re.split(r'[;:,]?\s*"', self.gloss)[0]
        return re.sub(r"\s+", " ", text).replace(" ;", ";").strip(" ;:")


def read_lines(path):
    """Lines of a WordNet file without its licence, whose lines begin with two spaces."""
    with open(path, encoding="ascii") as lines:
        return [line for line in lines if not line.startswith("  ")]


def read_synsets(folder):
    synsets = {}
    for part, suffix in FILE_SUFFIX.items():
        for line in read_lines(folder / f"data.{suffix}"):
            synsets[part, line[:8]] = Synset(line)
    return synsets


def read_senses(folder):
    """lemma -> [(part, sense number, offset)], in the order of the files."""
    senses = defaultdict(list)
    for part, suffix in FILE_SUFFIX.items():
        for line in read_lines(folder / f"index.{suffix}"):
            fields = line.split()
            offsets = fields[-int(fields[2]) :]
            for number, offset in enumerate(offsets, start=1):
                senses[fields[0]].append((part, number, offset))
    return senses


def read_tag_counts(folder):
    """How often each sense was tagged in a text corpus: (lemma, part, sense number) -> count."""
    counts = Counter()
    for line in read_lines(folder / "cntlist.rev"):
        sense_key, number, count = line.split()
        lemma, rest = sense_key.rsplit("%", 1)
        counts[lemma, SENSE_KEY_PARTS[rest[0]], int(number)] += int(count)
    return counts


def rank_by_use(synsets, tag_counts):
    """How common a word is: its uses in all definitions and examples, and its tags in the corpus."""
    uses = Counter()
    for synset in synsets.values():
        uses.update(WORD.findall(synset.gloss.lower()))
    for (lemma, _, _), count in tag_counts.items():
        uses[lemma] += count
    return uses


def is_insult(synset, synsets):
    domains = (synsets.get(("noun", offset)) for offset in synset.usage)
    return bool(INSULT.search(synset.gloss)) or any(d and INSULT_DOMAINS & set(d.words) for d in domains)


def write_answer(word, senses, synsets, tag_counts):
    """`noun: first meaning; or second meaning.` or `noun: first meaning. verb: second meaning.`

    The two most used senses, or one where the second would make it long. None if no sense fits.
    """
    kept = [s for s in senses if not is_insult(synsets[s[0], s[2]], synsets)]
    kept.sort(key=lambda s: -tag_counts[word, s[0], s[1]])  # stable: ties keep the order of the files
    answer, last_part = "", None
    for part, _, offset in kept[:2]:
        definition = synsets[part, offset].definition()
        if not definition:
            continue
        if not answer:
            longer = f"{part}: {definition}"
        elif part == last_part:
            longer = f"{answer}; or {definition}"
        else:
            longer = f"{answer}. {part}: {definition}"
        if len(longer) + 1 > MAX_ANSWER_CHARS:
            continue
        answer, last_part = longer, part
    return answer + "." if answer else None


def make_key(senses, synsets, tag_counts):
    uses = rank_by_use(synsets, tag_counts)
    candidates = sorted((w for w in senses if WORD.fullmatch(w)), key=lambda w: (-uses[w], w))
    key = {}
    for word in candidates:
        if any(is_insult(synsets[part, offset], synsets) for part, _, offset in senses[word][:1]):
            continue
        answer = write_answer(word, senses[word], synsets, tag_counts)
        if answer:
            key[word] = answer
        if len(key) == KEY_WORDS:
            break
    return dict(sorted(key.items()))


class WordMaker:
    """Draws letters from what follows the last three letters in real words, so the results look like words.

    Only Random.random() is used: its sequence is the one that Python promises to keep across versions.
    """

    def __init__(self, words, seed):
        self.random = random.Random(seed)
        following = defaultdict(Counter)
        for word in sorted(words):
            padded = f"^^^{word}$"
            for i in range(3, len(padded)):
                following[padded[i - 3 : i]][padded[i]] += 1
        self.choices = {k: [c for c, n in sorted(v.items()) for _ in range(n)] for k, v in following.items()}

    def draw(self):
        text = "^^^"
        while not text.endswith("$"):
            choices = self.choices[text[-3:]]
            text += choices[int(self.random.random() * len(choices))]
        return text[3:-1]

    def draw_new(self, count, known):
        """`count` different words of 5 to 12 letters, none of them in `known`."""
        made = {}
        while len(made) < count:
            word = self.draw()
            if 5 <= len(word) <= 12 and word not in known:
                made[word] = None
        return list(made)


def inflected_forms(folder):
    """Irregular forms, such as "geese": real words too."""
    return {line.split()[0] for suffix in FILE_SUFFIX.values() for line in read_lines(folder / f"{suffix}.exc")}


def real_words(folder, senses, synsets):
    """All that WordNet knows, and the words its glosses use."""
    used = (word for synset in synsets.values() for word in WORD.findall(synset.gloss.lower()))
    parts = (part for lemma in senses for part in re.split(r"[^a-z]+", lemma))
    return set(senses) | set(parts) | set(used) | inflected_forms(folder)


def make_files(folder):
    synsets, senses, tag_counts = read_synsets(folder), read_senses(folder), read_tag_counts(folder)
    key = make_key(senses, synsets, tag_counts)
    made_up = WordMaker(key, seed=2).draw_new(MADE_UP_WORDS, real_words(folder, senses, synsets))
    return {
        KEY_FILE: "".join(f"{word}\t{answer}\n" for word, answer in key.items()),
        MADE_UP_FILE: "".join(f"{word}\n" for word in sorted(made_up)),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("wordnet", type=Path, help="folder with data.noun, index.noun, cntlist.rev, ...")
    parser.add_argument("--check", action="store_true", help="compare with the files that are there; write nothing")
    args = parser.parse_args()
    if not (args.wordnet / "data.noun").exists():
        sys.exit(f"{args.wordnet} does not hold WordNet; on Debian and Ubuntu: apt-get install wordnet-base")
    for path, text in make_files(args.wordnet).items():
        if not args.check:
            path.write_bytes(text.encode("ascii"))
        elif path.read_bytes() != text.encode("ascii"):
            sys.exit(f"{path.name} differs from what WordNet in {args.wordnet} gives")
        print(f"{path.name}: {text.count(chr(10))} lines")


if __name__ == "__main__":
    main()
