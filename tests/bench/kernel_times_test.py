"""The table of bench/kernel_times.py, from times such as CUPTI leaves. Needs no GPU.

    python3 -B tests/bench/kernel_times_test.py
"""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))

from kernel_times import short_names, summarize

FIRST = "_ZN6tandem3ops4cuda11FirstKernelILi3ELb1EEEvi"
SECOND = "_ZN6tandem3ops4cuda12_GLOBAL__N_112SecondKernelEv"


class KernelTimesTest(unittest.TestCase):
    def test_names_keep_template_arguments_alone(self):
        self.assertEqual(short_names({FIRST, SECOND}), {FIRST: "FirstKernel<3, true>", SECOND: "SecondKernel"})

    def test_time_beside_an_earlier_kernel_is_the_earlier_ones(self):
        # The second begins while the first runs, and ends 2 us after it.
        rows = summarize([f"1000 6000 4 1 1 {FIRST}", f"3000 8000 2 8 1 {SECOND}"])
        self.assertEqual(rows[0][:3], ("FirstKernel<3, true>", "4x1x1", 1))
        self.assertEqual(rows[1][:3], ("SecondKernel", "2x8x1", 1))
        self.assertEqual([row[3] for row in rows], [5.0, 5.0])
        self.assertEqual([row[4] for row in rows], [5.0, 2.0])

    def test_a_kernel_that_ends_before_an_earlier_one_costs_nothing(self):
        rows = summarize([f"1000 9000 4 1 1 {FIRST}", f"2000 5000 2 8 1 {SECOND}", f"9000 9500 4 1 1 {FIRST}"])
        self.assertEqual(rows[0][2:5], (2, 4.25, 4.25))
        self.assertEqual(rows[1][2:5], (1, 3.0, 0.0))

    def test_grids_are_told_apart(self):
        rows = summarize([f"0 1000 4 1 1 {FIRST}", f"1000 3000 8 1 1 {FIRST}"])
        self.assertEqual([row[1] for row in rows], ["8x1x1", "4x1x1"])


if __name__ == "__main__":
    unittest.main()
