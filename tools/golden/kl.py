#!/usr/bin/env python3
"""How far logits are from a reference: the same arithmetic for every program.

    kl.py --model MODEL TOKENS REF NAME=LOGITS [NAME=LOGITS ...] [--window 512] [--csv FILE]

Files of logits are f32 [n_tokens][n_vocab]. Positions: every next-token prediction inside a window (511 of
512). KL is KL(ref || x) in nats. Perplexity is over the text's own next tokens; its error against the
reference is paired, token by token. Standard errors come from means of blocks of 64 positions, since
neighbours are not independent. With two or more names each is also compared with the first, paired.
"""
import argparse
import csv
import os

import numpy as np

import ggufio

BLOCK = 64
ROWS = 128


def log_softmax(x):
    x = x.astype(np.float64)
    x -= x.max(-1, keepdims=True)
    x -= np.log(np.exp(x).sum(-1, keepdims=True))
    return x


def standard_error(values):
    """Of the mean, from means of blocks."""
    n = len(values) // BLOCK
    if n < 2:
        return float("nan")
    means = np.reshape(values[:n * BLOCK], (n, BLOCK)).mean(-1)
    return means.std(ddof=1) / np.sqrt(n)


def measure(ids, ref, others, window):
    """Per position: {"ref": nll, name: (kl, nll, top1)}; ref and others: [T, V] arrays or memmaps."""
    ids = np.asarray(ids)
    rows = np.flatnonzero((np.arange(len(ids)) + 1) % window)[:]
    rows = rows[rows + 1 < len(ids)]
    nll_ref, out = [], {name: ([], [], []) for name in others}
    for start in range(0, len(rows), ROWS):
        r = rows[start:start + ROWS]
        target = ids[r + 1]
        at = np.arange(len(r))
        p = log_softmax(ref[r])
        weight, top = np.exp(p), p.argmax(-1)
        nll_ref.append(-p[at, target])
        for name, logits in others.items():
            if not np.isfinite(logits[r]).all():
                raise SystemExit(f"kl.py: {name}: a logit is not finite")
            q = log_softmax(logits[r])
            kl, nll, top1 = out[name]
            kl.append((weight * (p - q)).sum(-1))
            nll.append(-q[at, target])
            top1.append(q.argmax(-1) == top)
    return np.concatenate(nll_ref), {n: tuple(map(np.concatenate, v)) for n, v in out.items()}


def summary(nll_ref, kl, nll, top1):
    """Numbers of one program; ppl_excess is the relative difference to the reference's perplexity."""
    ratio = np.exp((nll - nll_ref).mean())
    return {
        "n": len(kl),
        "kl_mean": kl.mean(), "kl_se": standard_error(kl), "kl_max": kl.max(),
        "top1": top1.mean(),
        "ppl": np.exp(nll.mean()), "ppl_ref": np.exp(nll_ref.mean()),
        "ppl_excess": ratio - 1, "ppl_excess_se": ratio * standard_error(nll - nll_ref),
    }


def read_logits(path, n_tokens, n_vocab):
    size, want = os.path.getsize(path), 4 * n_tokens * n_vocab
    if size != want:
        raise SystemExit(f"kl.py: {path}: {size} bytes, {want} expected for {n_tokens} x {n_vocab} floats")
    return np.memmap(path, "<f4", "r", shape=(n_tokens, n_vocab))


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("tokens")
    p.add_argument("ref")
    p.add_argument("others", nargs="+", metavar="NAME=LOGITS")
    p.add_argument("--model", required=True, help="for the size of the vocabulary")
    p.add_argument("--window", type=int, default=512)
    p.add_argument("--csv", help="append rows here")
    p.add_argument("--label", default="", help="first column of the rows")
    a = p.parse_args()
    ids = np.array(open(a.tokens).read().split(), np.int64)
    n_vocab = ggufio.File(a.model).tensors["token_embd.weight"].shape[0]
    others = {}
    for item in a.others:
        name, _, path = item.partition("=")
        others[name] = read_logits(path, len(ids), n_vocab)
    nll_ref, result = measure(ids, read_logits(a.ref, len(ids), n_vocab), others, a.window)

    first = next(iter(result))
    for name, (kl, nll, top1) in result.items():
        s = summary(nll_ref, kl, nll, top1)
        print(f"{a.label} {name}: KL {s['kl_mean']:.3e} +- {s['kl_se']:.1e}, max {s['kl_max']:.2e}, top-1 "
              f"{100 * s['top1']:.2f} %, ppl {s['ppl']:.4f} (float64 {s['ppl_ref']:.4f}, "
              f"{100 * s['ppl_excess']:+.4f} % +- {100 * s['ppl_excess_se']:.4f} %), {s['n']} positions")
        if name != first:
            d_kl, d_nll = kl - result[first][0], nll - result[first][1]
            print(f"{a.label} {name} - {first}: KL {d_kl.mean():+.3e} +- {standard_error(d_kl):.1e}, "
                  f"ppl {100 * np.expm1(d_nll.mean()):+.4f} % +- {100 * standard_error(d_nll):.4f} %")
        if a.csv:
            new = not os.path.exists(a.csv)
            with open(a.csv, "a", newline="") as f:
                w = csv.DictWriter(f, ["label", "name"] + list(s), lineterminator="\n")
                if new:
                    w.writeheader()
                w.writerow({"label": a.label, "name": name} |
                           {k: v if k == "n" else f"{v:.6g}" for k, v in s.items()})


if __name__ == "__main__":
    main()
