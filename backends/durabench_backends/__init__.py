"""Backends: the contract, the registry, the conformance suite and the adapters, each adapter one file and one line."""
