"""A million rows read, checked, deduplicated, split and tokenized, beside the same work with `datasets`."""
