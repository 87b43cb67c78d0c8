"""deploy/kubernetes: the options that the manifests give to the program exist."""

import re
import unittest
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
MANIFESTS = sorted((REPOSITORY / "deploy/kubernetes").glob("*.yaml"))


def options_of_serve():
    """The names on the page that is generated from the option table."""
    page = (REPOSITORY / "docs/cli.md").read_text()
    section = page.split("\n## tandem serve\n")[1].split("\n## ")[0]
    return set(re.findall(r"`--([a-z0-9_]+)`", section))


class ManifestsTest(unittest.TestCase):
    def test_every_argument_is_an_option_of_serve(self):
        known = options_of_serve()
        seen = set()
        for manifest in MANIFESTS:
            for name in re.findall(r"^ +- --([a-z0-9_]+)=", manifest.read_text(), re.MULTILINE):
                self.assertIn(name, known, manifest.name)
                seen.add(name)
        self.assertLessEqual({"tensor_parallel_size", "kv_event_buffer", "drain_grace"}, seen)

    def test_a_pod_lives_longer_than_the_requests_that_it_ends(self):
        for manifest in MANIFESTS:
            text = manifest.read_text()
            if "args:" not in text:
                continue

            def number(pattern, text=text):
                return int(re.search(pattern + r"(\d+)", text)[1])

            waits = number("--drain_grace=") + number("--shutdown_timeout=")
            self.assertGreater(number("terminationGracePeriodSeconds: "), waits, manifest.name)


if __name__ == "__main__":
    unittest.main()
