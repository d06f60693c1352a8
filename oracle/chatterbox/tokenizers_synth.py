"""Synthetic tokenizer files with the official structure and special ids (the real vocabularies cannot be had here)."""
import json

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from presets import write_json

LANGS = "ar da de el en es fi fr he hi it ja ko ms nl no pl pt ru sv sw tr zh".split()
SOUNDS = ("UH UM giggle laughter guffaw inhale exhale sigh cry bark howl meow singing music whistle humming gasp "
          "groan whisper mumble sniff sneeze cough snore chew sip clear_throat kiss shhh gibberish").split()
TURBO_TAGS = ("angry|fear|surprised|whispering|advertisement|dramatic|narration|crying|happy|sarcastic|clear throat|"
              "sigh|shush|cough|groan|sniff|gasp|chuckle|laugh").split("|")

CORPUS = ("The quick brown fox jumps over the lazy dog. She sells sea shells by the sea shore, and the shells she "
          "sells are surely seashells. Hello there! How are you today? I think that this is the best of all "
          "possible worlds. Justice for everyone; the other brother said nothing. Bonjour tout le monde, ceci est "
          "un modele. el perro esta en la casa. ich bin nicht hier. We were there with them in the morning.").split()


def learn_merges(words, n):
    """Plain BPE merge learning over whitespace words."""
    seqs = [list(w) for w in words]
    merges = []
    for _ in range(n):
        counts = {}
        for s in seqs:
            for a, b in zip(s, s[1:]):
                counts[a, b] = counts.get((a, b), 0) + 1
        if not counts:
            break
        pair = min(counts, key=lambda p: (-counts[p], p))
        merges.append(pair)
        for s in seqs:
            i = 0
            while i < len(s) - 1:
                if (s[i], s[i + 1]) == pair:
                    s[i:i + 2] = [pair[0] + pair[1]]
                i += 1
    return merges


def write_grapheme_tokenizer(path, vocab_size, multilingual):
    """tokenizer.json (en) / grapheme_mtl_merged_expanded_v1.json (mtl): char BPE, Whitespace pre-tokenizer, [UNK]=1."""
    tokens = ["[STOP]", "[UNK]", "[SPACE]"]
    tokens += list("!\"#$%&'()*+,-./0123456789:;<=>?@") + list("ABCDEFGHIJKLMNOPQRSTUVWXYZ") + ["[", "]", "_"]
    tokens += list("abcdefghijklmnopqrstuvwxyz")
    merges = learn_merges([w.lower() if multilingual else w for w in CORPUS], 110)
    tokens += [a + b for a, b in merges if a + b not in tokens]
    special = ["[STOP]", "[UNK]", "[SPACE]", "[START]"]
    if multilingual:
        chars = []
        for lo, hi in ((0x300, 0x30d), (0x323, 0x32a), (0x3b1, 0x3ca), (0x430, 0x450), (0x5b0, 0x5bd), (0x5d0, 0x5eb),
                       (0x621, 0x656), (0x904, 0x94e), (0x1100, 0x1113), (0x1161, 0x1176), (0x11a8, 0x11c3),
                       (0x3041, 0x3095), (0x3099, 0x309b), (0x30a1, 0x30fb)):
            chars += [chr(c) for c in range(lo, hi)]
        chars += list("ß¿¡«»،؟。、，？！ー")
        tokens += [c for c in chars if c not in tokens]
        special += [f"[{x}]" for x in LANGS] + [f"[cj_{c}]" for c in "abcdefghijklmnopqrstuvwxyz0123456789."]
    special += [f"[{x}]" for x in SOUNDS]
    names = dict.fromkeys(tokens + [t for t in special if t != "[START]"]
                          + [f"[PLACEHOLDER{i}]" for i in range(vocab_size)])
    ids = [i for i in range(vocab_size) if i != 255]             # id 255 is [START]
    vocab = dict(zip(names, ids)) | {"[START]": 255}
    assert sorted(vocab.values()) == list(range(vocab_size)), (len(vocab), vocab_size)
    tok = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="[UNK]"))
    tok.pre_tokenizer = pre_tokenizers.Whitespace()
    tok.add_special_tokens(list(dict.fromkeys(special)))
    tok.save(str(path), pretty=False)


def write_cangjie(path):
    """Cangjie5_TC.json is a JSON list of "char<TAB>code[...]" strings; a handful of entries is enough to test the code path."""
    write_json(path, ["你\tonf", "好\tvnd", "今\toin", "天\tmk", "真\tjbmc", "不\tmf", "氣\tonfd", "汽\teomn",
                      "明\tab", "冐\tab", "日\ta", "曰\ta"], indent=0)


def write_gpt2_tokenizer(folder, vocab_size):
    """vocab.json, merges.txt, added_tokens.json, special_tokens_map.json, tokenizer_config.json (byte-level BPE)."""
    n_base = vocab_size - len(TURBO_TAGS)
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=n_base - 1, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
                                  show_progress=False, min_frequency=1)
    tok.train_from_iterator([" ".join(CORPUS)] * 4, trainer)
    model = json.loads(tok.to_str())["model"]
    vocab = dict(sorted(model["vocab"].items(), key=lambda kv: kv[1]))
    while len(vocab) < n_base - 1:
        vocab[f"<unused{len(vocab)}>"] = len(vocab)
    vocab["<|endoftext|>"] = n_base - 1
    write_json(folder / "vocab.json", vocab)
    lines = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(lines) + "\n", encoding="utf-8")
    write_json(folder / "added_tokens.json", {f"[{t}]": n_base + i for i, t in enumerate(TURBO_TAGS)}, indent=2)
    end = "<|endoftext|>"
    write_json(folder / "special_tokens_map.json", {"bos_token": end, "eos_token": end, "unk_token": end}, indent=2)
    write_json(folder / "tokenizer_config.json", {
        "tokenizer_class": "GPT2Tokenizer", "add_prefix_space": False, "model_max_length": 1024,
        "bos_token": end, "eos_token": end, "unk_token": end}, indent=2)
