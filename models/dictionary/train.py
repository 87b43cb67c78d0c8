"""Trains target and draft on the answer key and writes them as Hugging Face folders.

    python3 train.py --out OUT                     # one data-centre GPU, about eight minutes in all
    python3 train.py --out OUT --smoke             # a minute on a CPU: does every step run?

The learning rate follows the clock, so a slower GPU trains on fewer tokens and still ends its schedule.
"""

import argparse
import json
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from common import BOS, EOS, PAD, read_key, read_made_up
from corpus import Corpus, Writer
from tokenizer import MAX_TOKENS, VOCABULARY, save_tokenizer, train_tokenizer

# Every head count divides by 4 and every width by 4 x 64, so that both models can be sharded four ways.
SHAPES = {
    "target": dict(
        hidden_size=512, num_hidden_layers=6, num_attention_heads=8, num_key_value_heads=4, intermediate_size=768
    ),
    "draft": dict(
        hidden_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, intermediate_size=512
    ),
}
LEARNING_RATES = {"target": 2e-3, "draft": 5e-3}
BATCH_TOKENS = 65_536
SHARD_SIZE = "15MB"


def make_model(shape):
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        head_dim=64,
        max_position_embeddings=MAX_TOKENS,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=PAD,
        **shape,
    )
    return LlamaForCausalLM(config)


def answer_loss(hidden, head, labels):
    logits = F.linear(hidden, head)  # [rows, row, vocabulary]
    return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), ignore_index=-100)


def train(model, corpus, device, seconds, peak_rate, batch_tokens):
    """AdamW in fp32 under bf16 autocast; the rate climbs over 2 % of the time and falls to zero over the rest."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=peak_rate, betas=(0.9, 0.98), weight_decay=0.0, fused=device == "cuda"
    )
    batches = corpus.batches(batch_tokens, seed=3)
    loss_function = answer_loss
    if device == "cuda":
        torch._dynamo.config.recompile_limit = 64
        # Layer by layer: one layer's code serves them all, so each row length compiles in seconds.
        for layer in model.model.layers:
            layer.compile(dynamic=False)
        loss_function = torch.compile(answer_loss, dynamic=False)

    def step(inputs, labels):
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            hidden = model.model(inputs, use_cache=False).last_hidden_state
            loss = loss_function(hidden, model.lm_head.weight, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        return loss

    start = time.time()
    for inputs, labels in corpus.samples(batch_tokens):  # compile for every row length before the clock starts
        step(inputs, labels)
    optimizer.zero_grad(set_to_none=True)
    print(f"  first steps took {time.time() - start:.0f} s", flush=True)

    start, steps, progress = time.time(), 0, 0.0
    while progress < 1:
        rate = peak_rate * min(progress / 0.02 + 1e-3, (1 - progress) / 0.98)
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = step(*next(batches))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        steps += 1
        if steps % 20 == 0:
            value = loss.item()  # waits for the device, so that the clock below is its clock
            if steps % 400 == 0:
                print(f"  {time.time() - start:5.0f} s  step {steps}  loss {value:.4f}", flush=True)
        progress = (time.time() - start) / seconds
    return {"seconds": round(time.time() - start), "steps": steps, "tokens": steps * batch_tokens}


def save_model(model, tokenizer, folder):
    """A folder that transformers 4 and 5 read alike: both spellings of what they name differently."""
    model = model.to(torch.bfloat16)
    model.generation_config = GenerationConfig(do_sample=False, bos_token_id=BOS, eos_token_id=EOS, pad_token_id=PAD)
    model.save_pretrained(folder, max_shard_size=SHARD_SIZE)
    config = json.loads((folder / "config.json").read_text())
    config.update(dtype="bfloat16", torch_dtype="bfloat16", rope_theta=config["rope_parameters"]["rope_theta"])
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    save_tokenizer(tokenizer, folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for target/ and draft/")
    parser.add_argument("--target-seconds", type=float, default=300)
    parser.add_argument("--draft-seconds", type=float, default=25)
    parser.add_argument("--smoke", action="store_true", help="300 words, seconds of training")
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    key, made_up, batch_tokens = read_key(), read_made_up(), BATCH_TOKENS
    tokenizer = train_tokenizer(key)
    if args.smoke:
        key, batch_tokens = dict(list(key.items())[::75]), 1024
    start = time.time()
    corpus = Corpus(Writer(key, made_up, seed=1).documents(), tokenizer, device)
    print(f"{len(corpus.lengths)} documents, {len(corpus.tokens)} tokens in {time.time() - start:.0f} s", flush=True)

    report = {}
    for name, seconds in (("target", args.target_seconds), ("draft", args.draft_seconds)):
        torch.manual_seed(0)
        model = make_model(SHAPES[name]).to(device)
        print(f"{name}: {model.num_parameters():,} parameters", flush=True)
        report[name] = train(model, corpus, device, seconds, LEARNING_RATES[name], batch_tokens)
        save_model(model, tokenizer, args.out / name)
        print(f"{name}: {report[name]}", flush=True)
    (args.out / "training.json").write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
