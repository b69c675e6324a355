"""The census of the benchmarks, for tests: operators that wait for a GPU."""

from helpers.toy_ranks import load_tool

SyncCensus = load_tool('benchmarks/sync_count').SyncCensus
