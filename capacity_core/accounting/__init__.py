"""From a ledger to answers: memory by category, tokens and requests that fit, findings, advice."""
