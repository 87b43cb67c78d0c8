"""Host memory for blocks that the cache evicts, from the users' view: the same answers, found again, within the memory of the option;
and the feed of the cache's events.

    python3 tests/e2e/host_cache_test.py build/dev/tandem
"""

import unittest

from harness import Server

# Keys and values of the embedded pair: 8 KiB a token.
BLOCK_BYTES = 32 * 8192
BLOCKS = 24
HOST_BLOCKS = 4 * BLOCKS
ARGUMENTS = ("--max_seq_len", 512, "--max_batch_size", 4, "--kv_cache_bytes", BLOCKS * BLOCK_BYTES)
ROUNDS = 3
# What a server takes that is no cache grows by less than this from round to round.
SLACK_BYTES = 24 << 20


def prompts():
    """Long ones that share no beginning; together about four times the cache."""
    words = "tandem ocean engine memory prefix router window letter planet garden silver winter".split()
    return [f"{word} " * 3 + "".join(f"{word} {other} {i} " for i, other in enumerate(words * 4)) for word in words]


class HostCacheTest(unittest.TestCase):
    def answers(self, server):
        texts = []
        for prompt in prompts():
            status, reply = server.generate(prompt, max_tokens=16)
            self.assertEqual(status, 200, reply)
            texts.append(reply["text_output"])
        return texts

    def run_rounds(self, *arguments):
        """Answers, hit tokens and resident bytes of each round, and the last metrics."""
        server = Server(*ARGUMENTS, *arguments)
        try:
            rounds = []
            for _ in range(ROUNDS):
                before = server.metric("tandem_prefix_hit_tokens_total")
                texts = self.answers(server)
                hits = server.metric("tandem_prefix_hit_tokens_total") - before
                rounds.append((texts, hits, server.metric("process_resident_memory_bytes")))
            names = (
                "tandem_kv_capacity_blocks",
                "tandem_kv_host_capacity_blocks",
                "tandem_kv_host_used_blocks",
                "tandem_kv_host_used_bytes",
                "tandem_kv_offloads_total",
                "tandem_kv_onboards_total",
                "tandem_kv_onboarded_bytes_total",
                "tandem_prompt_tokens_total",
            )
            metrics = {name: server.metric(name) for name in names}
            return rounds, metrics, "".join(server.lines)
        finally:
            self.assertEqual(server.stop(), 0)

    def test_a_working_set_of_four_caches_is_found_again_with_the_same_text(self):
        plain, without, _ = self.run_rounds()
        self.assertEqual(without["tandem_kv_host_capacity_blocks"], 0)
        self.assertEqual(without["tandem_kv_offloads_total"], 0)
        tokens = without["tandem_prompt_tokens_total"] / ROUNDS
        self.assertGreater(tokens, 3 * 32 * BLOCKS)
        for _, hits, _ in plain:
            self.assertLess(hits, 0.1 * tokens)

        tiered, metrics, shown = self.run_rounds("--kv_host_cache_bytes", HOST_BLOCKS * BLOCK_BYTES)
        self.assertRegex(shown, r"evicted keys and values \(host\) +24\.0 MiB +--kv_host_cache_bytes")
        self.assertEqual(metrics["tandem_kv_capacity_blocks"], BLOCKS)
        self.assertEqual(metrics["tandem_kv_host_capacity_blocks"], HOST_BLOCKS)
        for (expected, _, _), (texts, _, _) in zip(plain, tiered):
            self.assertEqual(texts, expected)
        for _, hits, _ in tiered[1:]:
            self.assertGreater(hits, 0.9 * tokens)
        self.assertGreater(metrics["tandem_kv_offloads_total"], 2 * BLOCKS)
        self.assertGreater(metrics["tandem_kv_onboards_total"], 2 * BLOCKS)
        self.assertEqual(
            metrics["tandem_kv_onboarded_bytes_total"], metrics["tandem_kv_onboards_total"] * BLOCK_BYTES
        )
        self.assertLessEqual(metrics["tandem_kv_host_used_blocks"], HOST_BLOCKS)
        self.assertLessEqual(metrics["tandem_kv_host_used_bytes"], HOST_BLOCKS * BLOCK_BYTES)
        bound = plain[-1][2] + HOST_BLOCKS * BLOCK_BYTES + SLACK_BYTES
        for _, _, resident in tiered:
            self.assertLess(resident, bound)

    def test_the_events_tell_what_is_cached_where(self):
        server = Server(*ARGUMENTS, "--kv_host_cache_bytes", HOST_BLOCKS * BLOCK_BYTES, "--kv_event_buffer", 4096)
        try:
            levels, events = {}, []
            for _ in range(2):
                self.answers(server)
                while batch := server.post("/kv_cache_events", "")[1]:
                    events += batch
            self.assertEqual([event["event_id"] for event in events], list(range(len(events))))
            self.assertEqual(
                events[0]["data"], {"type": "created", "num_blocks_per_cache_level": [BLOCKS, HOST_BLOCKS]}
            )
            for data in (event["data"] for event in events):
                if data["type"] == "stored":
                    self.assertTrue(data["parent_hash"] is None or data["parent_hash"] in levels)
                    for block in data["blocks"]:
                        self.assertEqual(len(block["tokens"]), 32)
                        levels[block["block_hash"]] = block["cache_level"]
                elif data["type"] == "updated":
                    self.assertEqual(levels[data["block_hash"]], data["cache_level"]["old_value"])
                    levels[data["block_hash"]] = data["cache_level"]["new_value"]
                elif data["type"] == "removed":
                    for block in data["block_hashes"]:
                        del levels[block]
            self.assertEqual(
                sum(level == 1 for level in levels.values()), server.metric("tandem_kv_host_used_blocks")
            )
            self.assertGreater(sum(level == 0 for level in levels.values()), BLOCKS // 2)
            status, headers, _ = server.request("GET", "/kv_cache_events")
            self.assertEqual((status, headers["x-kv-events-lost"]), (200, "0"))
        finally:
            self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main()
