"""tools/fill_template.py: the command line, the substitutions, and how the file is written."""

import os
import stat
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from old_tree import COMPAT

SCRIPT = COMPAT / "tools/fill_template.py"


class FillTemplateTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file = Path(folder.name) / "config.pbtxt"

    def fill(self, text, *arguments, code=0):
        """The completed process; FILE among the arguments is the file with this text."""
        self.file.write_bytes(text.encode())
        done = subprocess.run(
            [sys.executable, SCRIPT, *(str(self.file) if a == "FILE" else a for a in arguments)],
            capture_output=True,
            timeout=60,
        )
        done.stdout, done.stderr = done.stdout.decode(), done.stderr.decode()
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def filled(self, text, substitutions):
        done = self.fill(text, "FILE", substitutions)
        self.assertEqual(done.stderr, "")
        return done.stdout

    def test_prints_the_result_and_leaves_the_file_without_in_place(self):
        self.assertEqual(self.filled("a: ${a}\n", "a:1"), "a: 1\n")
        self.assertEqual(self.file.read_text(), "a: ${a}\n")

    def test_in_place_is_taken_before_between_and_after_the_others(self):
        for arguments in (["-i", "FILE", "a:1"], ["FILE", "--in_place", "a:1"], ["FILE", "a:1", "-i"]):
            done = self.fill("a: ${a}", *arguments)
            self.assertEqual((done.stdout, self.file.read_text()), ("", "a: 1"), arguments)

    def test_both_forms_of_a_variable_are_replaced_and_two_dollars_are_one(self):
        self.assertEqual(self.filled("${a} $a $$a ${b} $b $ {a} $1", "a:x"), "x x $a ${b} $b $ {a} $1")

    def test_a_piece_without_a_colon_continues_the_value(self):
        self.assertEqual(self.filled("${ids} ${p} ${z}", "ids:1,2,p:2,3,z:1"), "1,2 2,3 1")
        self.assertEqual(self.filled("${ids}", "ids:0,1;2,3"), "0,1;2,3")
        self.assertEqual(self.filled("${choices}", "choices:{0,0},{0,1}"), "{0,0},{0,1}")

    def test_escaped_commas_and_colons_are_characters_of_the_value(self):
        self.assertEqual(self.filled("${a} ${b}", r"a:1\,2,b:x\:y\,z"), "1,2 x:y,z")
        self.assertEqual(self.filled("${a}", r"a:C\path"), r"C\path")

    def test_a_value_has_all_colons_after_the_first(self):
        self.assertEqual(self.filled("${a} ${b}", "a:http://host:80/x,b:2"), "http://host:80/x 2")

    def test_an_empty_value_fills_in_nothing(self):
        self.assertEqual(self.filled('"${a}" "${b}"', "a:,b:x"), '"" "x"')

    def test_a_comma_at_the_end_is_nothing(self):
        self.assertEqual(self.filled("${a}", "a:1,"), "1")

    def test_the_last_of_two_values_counts(self):
        self.assertEqual(self.filled("${a}", "a:1,a:2"), "2")

    def test_values_are_not_filled_in_themselves(self):
        self.assertEqual(self.filled("${a} ${b}", "a:${b},b:$x"), "${b} $x")

    def test_queue_bounds_have_defaults_that_a_value_replaces(self):
        text = "${max_queue_size} ${max_queue_delay_microseconds} ${other}"
        self.assertEqual(self.filled(text, "other:1"), "0 0 1")
        self.assertEqual(self.filled(text, "max_queue_size:7,other:1"), "7 0 1")

    def test_names_that_the_file_does_not_have_are_reported_and_the_rest_is_filled(self):
        done = self.fill("${a}", "-i", "FILE", "a:1,b:2,c:3")
        self.assertEqual(self.file.read_text(), "1")
        self.assertRegex(done.stderr, "has no variable 'b'.*\n.*has no variable 'c'")
        self.assertNotIn("'a'", done.stderr)

    def test_a_text_without_a_name_is_refused_and_changes_nothing(self):
        done = self.fill("${a}", "-i", "FILE", "1,a:2", code=1)
        self.assertIn("'1' has no value", done.stderr)
        self.assertEqual(self.file.read_text(), "${a}")

    def test_a_missing_file_is_named(self):
        done = self.fill("", "-i", str(self.file) + ".x", "a:1", code=1)
        self.assertIn("config.pbtxt.x", done.stderr)
        self.assertNotIn("Traceback", done.stderr)

    def test_the_file_keeps_its_mode_its_line_ends_and_its_link(self):
        link = self.file.with_name("link.pbtxt")
        link.symlink_to(self.file)
        self.file.touch()
        self.file.chmod(0o640)
        self.fill("é ${a}\r\n", "-i", str(link), "a:1")
        self.assertTrue(link.is_symlink())
        self.assertEqual(self.file.read_bytes().decode(), "é 1\r\n")
        self.assertEqual(stat.S_IMODE(self.file.stat().st_mode), 0o640)
        self.assertEqual(sorted(os.listdir(self.file.parent)), ["config.pbtxt", "link.pbtxt"])


if __name__ == "__main__":
    unittest.main()
