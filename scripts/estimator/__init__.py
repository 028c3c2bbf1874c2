"""Helpers of ``fit_script_estimator.py``: tokenizers to count with, texts to count, the linear programme, the written files."""
