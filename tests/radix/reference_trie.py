"""What an infinite cache would find in a claude-code trace, in plain Python: the answer that the store is held against.

Usage: python reference_trie.py traces.jsonl.gz [SESSIONS]
"""

import gzip
import json
import sys


def calls_of(entries):
    for entry in entries:
        if "requests" in entry:
            yield from calls_of(entry["requests"])
        else:
            yield entry


def main(path, sessions=None):
    calls = input_tokens = cached_tokens = 0
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            if number == sessions:
                break
            session = json.loads(line)
            known = {}
            for call in calls_of(session["requests"]):
                node, depth, new = known, 0, False
                for hash_id in call["hash_ids"]:
                    if not new and hash_id in node:
                        depth += 1
                    else:
                        new = True
                    node = node.setdefault(hash_id, {})
                calls += 1
                input_tokens += call["in"]
                cached_tokens += min(session["block_size"] * depth, call["in"] - 1)
    print(json.dumps({"calls": calls, "input_tokens": input_tokens, "cached_tokens": cached_tokens}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else None)
