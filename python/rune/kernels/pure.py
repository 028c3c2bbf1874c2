"""The kernels in plain Python: the readable specification of ``rune._native``, and what runs where that is not built.

Both give identical results for every input, errors included; the test suite runs over both. Where to read what:

* ``pure_estimate``   how many tokens a text is taken to have
* ``pure_admission``  which blocks enter a budget
* ``pure_ledger``     digests, and the ledger that keeps tokens, totals, digests and admission of many entries
* ``pure_turns``      the turns of a conversation, and where one stands in a file
"""

from rune.kernels.pure_admission import Admission, admit
from rune.kernels.pure_estimate import ESTIMATOR_NAMES, Estimator, chars4, chars4_many, get_estimator
from rune.kernels.pure_ledger import Ledger, digest, digest_many
from rune.kernels.pure_turns import Turns

__all__ = [
    "ESTIMATOR_NAMES",
    "Admission",
    "Estimator",
    "Ledger",
    "Turns",
    "admit",
    "chars4",
    "chars4_many",
    "digest",
    "digest_many",
    "get_estimator",
]
