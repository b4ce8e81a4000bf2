"""One post-training trial from data to verdict, on development items; prints its row for docs/posttraining.md.

    python -m bench.posttrain_trial --work DIR [--family addition] [--name NAME] [--set steps=80 --set kl_weight=2 …]

``--work`` caches the parent, its data set and its replies, so that trials differ in the recipe alone.  The items are
drawn from a development seed: they choose a recipe, and a night judges on fresh ones.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy import stats

from model.embedded import convert_embedded, sha256_file
from model.evals import load_evals
from model.families import Family
from model.items import user
from model.language_model import LanguageModel
from model.recipe import Recipe

ROOT = Path(__file__).resolve().parent.parent
STARTER = ROOT / "model" / "starter"
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "sums": ("chain_sum", {"min_terms": 2, "max_terms": 2, "min_digits": 2, "max_digits": 2}),
    "addition": (
        "basic_arithmetic",
        {"min_terms": 2, "max_terms": 2, "min_digits": 2, "max_digits": 2, "operators": ("+",),
         "allow_parentheses": False, "allow_negation": False},
    ),
    "gcd": ("gcd", {"min_value": 1, "max_value": 200}),
    "letters": ("letter_counting", {"min_words": 3, "max_words": 6}),
    "sorting": ("number_sorting", {"min_numbers": 3, "max_numbers": 3, "min_decimals": 0, "max_decimals": 0,
                                   "min_value": 0, "max_value": 99}),
    "spell": ("spell_backward", {"min_word_len": 3, "max_word_len": 5}),
    "decimals": ("decimal_chain_sum", {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1,
                                       "min_decimal_places": 1, "max_decimal_places": 1}),
}  # fmt: skip
JUDGED_SEED, TRAIN_SEED = 20_250_001, 77
GUARD_ITEMS, REPLAY_TOKENS = 110, 24


def family(name: str) -> Family:
    dataset, config = FAMILIES[name]
    return Family(name, dataset, config, name, "arithmetic", 24)


def own_replies(model: LanguageModel, path: Path) -> list[dict[str, Any]]:
    """The parent's replies to the replay prompts, sampled at temperature 1."""
    if not path.exists():
        prompts = (STARTER / "replay_prompts.txt").read_text().splitlines()
        started = time.monotonic()
        replies = model.reply([[user(p)] for p in prompts], max_new_tokens=REPLAY_TOKENS, temperature=1.0, seed=5)
        print(f"replay: {len(prompts)} replies, {time.monotonic() - started:.0f} s", flush=True)
        rows = [
            {"prompt": p, "text": r.text, "ended": r.tokens_out < REPLAY_TOKENS}
            for p, r in zip(prompts, replies, strict=True)
            if r.text
        ]
        path.write_text(json.dumps(rows))
    found: list[dict[str, Any]] = json.loads(path.read_text())
    return found


def make_data(model: LanguageModel, work: Path, name: str, problems: int, judged: set[str]) -> Path:
    """Target rows (own right answers where sampling finds one, else gold), replay and prose."""
    path = work / f"data_{name}_{problems}.parquet"
    if path.exists():
        return path
    subject = family(name)
    items = [item for item in subject.items(TRAIN_SEED, problems + 200) if item.key not in judged][:problems]
    sampled = items[: min(200, problems)]
    started = time.monotonic()
    replies = model.reply([item.messages for item in sampled], max_new_tokens=24, temperature=0.7, seed=6)
    own = {item.key: reply for item, reply in zip(sampled, replies, strict=True)
           if reply.tokens_out < 24 and subject.score(item, reply.text).strict}  # fmt: skip
    print(f"self-sampling: {len(own)} of {len(sampled)} right, {time.monotonic() - started:.0f} s", flush=True)
    rows: list[tuple[Any, ...]] = []
    for item in items:
        if item.key in own:
            rows.append((item.messages, own[item.key].text, "self", item.key, name, True))
        else:
            rows.append((item.messages, item.gold, "gold", item.key, name, True))
    rows += [((user(row["prompt"]),), row["text"], "replay", f"replay {row['prompt']}", "replay", row["ended"])
             for row in own_replies(model, work / "replay.json")]  # fmt: skip
    prose = (STARTER / "anchor_prose.txt").read_text().split("\n\n")
    rows += [((), text.strip(), "prose", f"prose {text[:80]}", "prose", False) for text in prose]
    columns: dict[str, list[Any]] = {
        "prompt": [json.dumps([{"role": m.role, "parts": [vars(part) for part in m.parts]} for m in row[0]])
                   for row in rows]
    }  # fmt: skip
    for place, column in enumerate(("completion", "source", "key", "family", "complete"), start=1):
        columns[column] = [row[place] for row in rows]
    pq.write_table(pa.table(columns), path)
    return path


def judge(model: LanguageModel, name: str, target_items: int, *, guards: bool = True) -> dict[str, Any]:
    """Every development item once: {"target": [...], "guards": [...], "prose": [[nats, tokens], …], "seconds"}."""
    started = time.monotonic()
    subjects: list[Any] = [(family(name), target_items)]
    if guards:
        subjects += [(guard, GUARD_ITEMS) for guard in load_evals(STARTER / "evals").values()]
    rows, conversations, budgets = [], [], []
    for subject, count in subjects:
        for item in subject.items(JUDGED_SEED, count):
            rows.append((subject, item))
            conversations.append(item.messages)
            budgets.append(subject.MAX_NEW_TOKENS)
    replies = model.reply(conversations, max_new_tokens=budgets)
    found: list[dict[str, Any]] = [
        {"eval": subject.name, "template": item.template, "key": item.key, "reply": reply.text,
         "right": subject.score(item, reply.text).strict, "tokens": reply.tokens_out}
        for (subject, item), reply in zip(rows, replies, strict=True)
    ]  # fmt: skip
    passages = [
        text.strip() for path in sorted((STARTER / "prose").glob("*.txt")) for text in path.read_text().split("\n\n")
    ]
    return {
        "target": [row for row in found if row["eval"] == name],
        "guards": [row for row in found if row["eval"] != name],
        "prose": model.token_nll(passages),
        "seconds": time.monotonic() - started,
    }


def summary(parent: dict[str, Any], successor: dict[str, Any]) -> dict[str, Any]:
    """Paired statistics: exact McNemar; guards as a clustered one-sided 95% bound; perplexity over passages."""
    pairs = list(zip(parent["target"], successor["target"], strict=True))
    gained = sum(b["right"] and not a["right"] for a, b in pairs)
    lost = sum(a["right"] and not b["right"] for a, b in pairs)
    p = stats.binomtest(gained, gained + lost, 0.5).pvalue if gained + lost else 1.0
    result: dict[str, Any] = {
        "parent": sum(a["right"] for a, _ in pairs), "successor": sum(b["right"] for _, b in pairs),
        "n": len(pairs), "gained": gained, "lost": lost, "p": float(p),
    }  # fmt: skip
    kinds: dict[str, list[int]] = {}
    clusters: dict[str, list[int]] = {}
    for a, b in zip(parent["guards"], successor["guards"], strict=True):
        difference = int(b["right"]) - int(a["right"])
        tally = kinds.setdefault(a["eval"], [0, 0, 0])
        tally[0], tally[1], tally[2] = tally[0] + a["right"], tally[1] + b["right"], tally[2] + 1
        clusters.setdefault(a["template"], []).append(difference)
    every = np.concatenate([np.array(each) for each in clusters.values()])
    sums = np.array([sum(each) - len(each) * every.mean() for each in clusters.values()])
    error = float(np.sqrt((sums**2).sum() * len(sums) / (len(sums) - 1))) / len(every)
    result["guards"] = {
        "n": len(every), "difference": float(every.mean()), "lower": float(every.mean() - 1.645 * error),
        "gained": int((every > 0).sum()), "lost": int((every < 0).sum()), "kinds": kinds,
    }  # fmt: skip
    nll = np.array([[a[0], b[0], a[1]] for a, b in zip(parent["prose"], successor["prose"], strict=True)])
    delta = float((nll[:, 1].sum() - nll[:, 0].sum()) / nll[:, 2].sum())
    residual = nll[:, 1] - nll[:, 0] - delta * nll[:, 2]
    spread = float(np.sqrt((residual**2).sum() * len(nll) / (len(nll) - 1))) / float(nll[:, 2].sum())
    result["prose"] = {
        "parent": float(np.exp(nll[:, 0].sum() / nll[:, 2].sum())), "tokens": int(nll[:, 2].sum()),
        "successor": float(np.exp(nll[:, 1].sum() / nll[:, 2].sum())), "log_ratio": delta,
        "upper": delta + 1.645 * spread,
    }  # fmt: skip
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--family", default="sums", choices=sorted(FAMILIES))
    parser.add_argument("--name", default="trial")
    parser.add_argument("--problems", type=int, default=400)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--target-items", type=int, default=160)
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE")
    options = parser.parse_args()
    work: Path = options.work
    work.mkdir(parents=True, exist_ok=True)
    recipe = Recipe.from_dict(tomllib.loads("\n".join(options.set)))
    parent_dir = work / "parent"
    convert_embedded(parent_dir)
    cached = work / f"parent_{options.family}_{options.target_items}.json"
    parent = LanguageModel.load(parent_dir, options.threads)
    if not cached.exists():
        others = next(iter(work.glob("parent_*.json")), None)  # the guards are the same for every family
        found = judge(parent, options.family, options.target_items, guards=others is None)
        if others is not None:
            found = {**json.loads(others.read_text()), "target": found["target"]}
        cached.write_text(json.dumps(found))
    before = json.loads(cached.read_text())
    data = make_data(parent, work, options.family, options.problems, {row["key"] for row in before["target"]})
    del parent
    out = work / f"{options.family}_{options.name}"
    out.mkdir(exist_ok=True)
    spec = {
        "model_dir": str(parent_dir), "data": [str(data)], "out_dir": str(out), "recipe": recipe.to_dict(),
        "seed": random.Random(options.name).getrandbits(31), "threads": options.threads,
        "parent_sha256": sha256_file(parent_dir / "model.safetensors"),
    }  # fmt: skip
    (out / "spec.json").write_text(json.dumps(spec))
    started = time.monotonic()
    with (out / "progress.jsonl").open("w") as log:
        subprocess.run(
            [sys.executable, "-m", "model.trainer", str(out / "spec.json")], check=True, stdout=log, cwd=ROOT
        )
    train_s = time.monotonic() - started
    after = judge(LanguageModel.load(out / "successor", options.threads), options.family, options.target_items)
    (out / "judged.json").write_text(json.dumps(after))
    found = summary(before, after)
    (out / "summary.json").write_text(json.dumps(found, indent=1))
    guards, prose = found["guards"], found["prose"]
    print(
        f"| {options.family} | {options.name}: {' '.join(options.set)} | {train_s:.0f} | {after['seconds']:.0f} "
        f"| {found['parent']}→{found['successor']} of {found['n']} (+{found['gained']}/−{found['lost']}, "
        f"p = {found['p']:.1e}) | {100 * guards['difference']:+.1f} (≥ {100 * guards['lower']:+.1f}; "
        f"+{guards['gained']}/−{guards['lost']} of {guards['n']}) | {prose['parent']:.2f}→{prose['successor']:.2f} "
        f"(≤ {100 * (np.exp(prose['upper']) - 1):+.1f}%) |"
    )
    print(json.dumps(guards["kinds"]))


if __name__ == "__main__":
    main()
