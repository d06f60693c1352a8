#!/usr/bin/env python3
"""Write random-weight Chatterbox checkpoints with the official file names, tensor names, shapes and dtypes.

    python make_checkpoint.py --preset tiny --out CKPT                       # all variants
    python make_checkpoint.py --preset full --variant turbo --out CKPT       # true sizes, for speed tests
    python make_checkpoint.py --listings golden/checkpoints                  # what is committed in their place
"""
import argparse
import pathlib
import tempfile
import zlib

import torch
from safetensors.torch import save_file

import presets as P
import tokenizers_synth as T
import weights

SEED = 20250601
# Prompt lengths of conds.pt: speech tokens for T3 and for S3Gen
CONDS = {"tiny": (60, 40), "full": (150, 250), "full-turbo": (375, 250)}


def state(module, drop=()):
    return {k: v.contiguous().clone() for k, v in module.state_dict().items() if not k.endswith(drop)}


def conds_lines(n_t3, n_gen):
    """The built-in voice, as a listing. `t3.` and `gen.` are nested dicts; the official loader needs the None entries."""
    return ["t3.speaker_emb F32 1x256 0.0541 0.0312", f"t3.cond_prompt_speech_tokens I64 1x{n_t3} 0 6561",
            "t3.emotion_adv F32 1x1x1 0.5 0", f"gen.prompt_token I64 1x{n_gen} 0 6561",
            f"gen.prompt_token_len I64 1 {n_gen} 0", f"gen.prompt_feat F32 1x{2 * n_gen}x80 -5 1.5",
            "gen.embedding F32 1x192 0 1"]


def conds(preset, seed):
    res = {"t3": {"clap_emb": None, "cond_prompt_speech_emb": None}, "gen": {"prompt_feat_len": None}}
    for text in conds_lines(*CONDS[preset]):
        name, dtype, shape, base, scale = text.split(" ")
        part, leaf = name.split(".")
        fill = weights.floats if dtype == "F32" else weights.integers
        shape = tuple(int(n) for n in shape.split("x"))
        res[part][leaf] = torch.from_numpy(fill(seed, f"conds/{name}", shape, float(base), float(scale)))
    return res


def write_texts(out, variant, preset):
    """The files for text: structure and special ids of the official ones."""
    if variant in P.GPT2:
        T.write_gpt2_tokenizer(out, P.t3_hparams(variant, preset).text_tokens_dict_size)
    elif variant == "en":
        T.write_grapheme_tokenizer(out / "tokenizer.json", P.TINY["text_vocab"]["en"], False)
    else:
        T.write_grapheme_tokenizer(out / "grapheme_mtl_merged_expanded_v1.json", P.TINY["text_vocab"]["mtl"], True)
        T.write_cangjie(out / "Cangjie5_TC.json")


def write(variant, preset, root, seed):
    out = pathlib.Path(root) / P.FOLDER[variant]
    out.mkdir(parents=True, exist_ok=True)
    for file, module in modules(variant, preset, seed):
        save_file(state(module), out / f"{file}.safetensors")
        if variant == "mtl" and file in ("s3gen", "ve"):        # the official loader opens pickles
            torch.save(state(module), out / f"{file}.pt")
    torch.save(conds("full-turbo" if preset == "full" and variant in P.GPT2 else preset, seed), out / "conds.pt")
    write_texts(out, variant, preset)
    print(f"{variant}: {out}", flush=True)


def modules(variant, preset, seed, done=()):
    """Weight files of a variant, one at a time because of their size."""
    makers = {P.T3_FILE[variant]: lambda: P.build_t3(variant, preset),
              P.S3GEN_FILE[variant]: lambda: P.build_s3gen(variant in P.GPT2, preset),
              "ve": lambda: P.build_ve(preset)}
    for file, make in makers.items():
        if file not in done:
            yield file, P.randomize_(make(), seed, file)


def write_listings(out, seed):
    small = out / "files"
    small.mkdir(parents=True, exist_ok=True)
    for variant in ("en", "mtl", "turbo"):
        write_texts(small, variant, "tiny")
    torch.save(conds("tiny", seed), small / "conds.pt")
    manifest = {"seed": seed, "crc32": {}}
    for preset in ("tiny", "full"):
        folder, listings = out / preset, {}
        folder.mkdir(exist_ok=True)
        for variant in P.VARIANTS:
            for file, module in modules(variant, preset, seed, listings):
                tensors = module.state_dict()
                listings[file] = weights.compact(
                    weights.line(k, tensors[k], *rule) for k, rule in P.rules(module).items())
                manifest["crc32"][f"{preset}/{file}"] = weights.checksum(state(module, weights.COMPUTED))
                print(preset, file, len(listings[file]), "lines", flush=True)
        # The meanflow model is the standard one plus a tensor.
        standard = set(listings["s3gen"])
        assert standard < set(listings["s3gen_meanflow"])
        listings["s3gen_meanflow"] = [x for x in listings["s3gen_meanflow"] if x not in standard]
        for file, lines in listings.items():
            (folder / f"{file}.tensors.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for name in ("full", "full-turbo"):
        file = "conds-turbo" if "turbo" in name else "conds"
        (out / "full" / f"{file}.tensors.txt").write_text("\n".join(conds_lines(*CONDS[name])) + "\n", encoding="utf-8")
    # Texts of true sizes, which orate-testing derives from the tiny ones
    with tempfile.TemporaryDirectory() as big:
        write_texts(pathlib.Path(big), "turbo", "full")
        for name in ("vocab.json", "added_tokens.json"):
            manifest["crc32"][f"full/{name}"] = f"{zlib.crc32(pathlib.Path(big, name).read_bytes()):08x}"
    P.write_json(out / "manifest.json", manifest, indent=1)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--preset", choices=("tiny", "full"), default="tiny")
    ap.add_argument("--variant", choices=P.VARIANTS, action="append", help="default: all")
    ap.add_argument("--out")
    ap.add_argument("--listings", type=pathlib.Path, metavar="DIR")
    ap.add_argument("--seed", type=int, default=SEED)
    a = ap.parse_args()
    torch.set_num_threads(1)
    if a.listings:
        write_listings(a.listings, a.seed)
    for v in (a.variant or P.VARIANTS) if a.out else ():
        write(v, a.preset, a.out, a.seed)


if __name__ == "__main__":
    main()
