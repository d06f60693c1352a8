"""Supertonic text front end: chunking, normalization, language tags, token ids.

Behavior follows the official pip package (1.3.1), which serves versions 1, 2 and 3.
The order of the rules matters; comments say where.
"""
import re
import unicodedata

LANGUAGES = {
    1: [],
    2: "en ko es pt fr".split(),
    3: ("en ko ja ar bg cs da de el es et fi fr hi hr hu id it lt lv nl pl pt ro ru "
        "sk sl sv tr uk vi na").split(),
}
SILENCE_S, MAX_CHARS, MAX_CHARS_KO = 0.3, 300, 120

EMOJI = [(0x1F600, 0x1F64F), (0x1F300, 0x1F5FF), (0x1F680, 0x1F6FF), (0x1F700, 0x1F77F),
         (0x1F780, 0x1F7FF), (0x1F800, 0x1F8FF), (0x1F900, 0x1F9FF), (0x1FA00, 0x1FA6F),
         (0x1FA70, 0x1FAFF), (0x2600, 0x26FF), (0x2700, 0x27BF), (0x1F1E6, 0x1F1FF)]
SYMBOLS = str.maketrans({
    **dict.fromkeys("\u2013\u2011\u2014", "-"),
    **dict.fromkeys("\u00af_[]|/#\u2192\u2190", " "),
    **dict.fromkeys("\u201c\u201d", '"'),
    **dict.fromkeys("\u2018\u2019\u00b4`", "'"),
    **dict.fromkeys("\u2665\u2606\u2661\u00a9\\", None),
})
CLOSERS = set(".!?;:,'\")]}\u2026\u3002\u300d\u300f\u3011\u3009\u300b\u203a\u00bb")

NO_SPLIT_AFTER = ("Mr. Mrs. Ms. Dr. Prof. Sr. Jr. Ph.D. etc. e.g. i.e. vs. "
                  "Inc. Ltd. Co. Corp. St. Ave. Blvd.").split()


def normalise(text):
    """NFKD first, so several of the later replacements can no longer match."""
    text = unicodedata.normalize("NFKD", text)
    text = "".join(c for c in text if not any(a <= ord(c) <= b for a, b in EMOJI))
    text = text.translate(SYMBOLS)
    for old, new in (("@", " at "), ("e.g.,", "for example, "), ("i.e.,", "that is, ")):
        text = text.replace(old, new)
    for p in ",.!?;:'":                      # one space only, one pass per mark
        text = text.replace(" " + p, p)
    text = re.sub(r"([\"'`])\1+", r"\1", text)
    text = re.sub(r"\s+", " ", text).strip()
    return text if text and text[-1] in CLOSERS else text + "."


def prepare(text, version, lang):
    """Normalized text as the networks see it; `lang` is ignored by version 1."""
    text = normalise(text)
    if version == 1:
        return text
    lang = lang or "na"
    if lang not in LANGUAGES[3]:
        raise ValueError(f"unknown language {lang!r}; known: {' '.join(LANGUAGES[3])}")
    return f"<{lang}>{text}</{lang}>"


def token_ids(prepared, indexer):
    """One id per code point. -1 means unknown; the embedding Gather then reads its last row."""
    return [indexer[ord(c)] if ord(c) < len(indexer) else -1 for c in prepared]


def unsupported(text, indexer):
    """Characters that the official package refuses, tested one by one before tagging."""
    return sorted({c for c in text if -1 in token_ids(normalise(c), indexer)})


def sentences(paragraph):
    """Split at whitespace that follows . ! or ?, except after abbreviations and initials."""
    out, start = [], 0
    for m in re.finditer(r"(?<=[.!?])\s+", paragraph):
        head = paragraph[:m.start()]
        if head.endswith(tuple(NO_SPLIT_AFTER)) or re.search(r"\b[A-Z]\.$", head):
            continue
        out.append(paragraph[start:m.start()])
        start = m.end()
    return [s.strip() for s in out + [paragraph[start:]] if s.strip()]


def chunks(text, max_chars):
    """Pack whole sentences greedily. Lengths count code points of the raw text."""
    out = []
    for paragraph in re.split(r"\n\s*\n+", text.strip()):
        current = ""
        for s in sentences(paragraph.strip()):
            if len(current) + len(s) + 1 <= max_chars:
                current = f"{current} {s}" if current else s
            else:
                if current:
                    out.append(current)
                current = s                  # an over-long sentence stays whole
        if current:
            out.append(current)
    return out


def max_chars(version, lang):
    return MAX_CHARS_KO if version > 1 and lang == "ko" else MAX_CHARS
