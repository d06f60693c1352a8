"""Builds official Chatterbox modules at a chosen size and fills them with seeded random weights.

Everything numerical is done by the official classes (`chatterbox-tts`); this file only decides
their sizes.  The package hard-codes most sizes, so the `tiny` preset swaps the class names that
the official constructors look up for wrappers that override a few keyword arguments.
"""
import contextlib
import functools
import json
import math

import torch
from torch import nn

import chatterbox.models.s3gen.s3gen as s3gen_mod
import chatterbox.models.t3.modules.cond_enc as cond_enc_mod
import chatterbox.models.t3.modules.t3_config as t3_config_mod
import chatterbox.models.t3.t3 as t3_mod
import s3tokenizer.model_v2 as s3tok_v2
from chatterbox.models.s3gen.flow import CausalMaskedDiffWithXvec
from chatterbox.models.s3gen.decoder import ConditionalDecoder
from chatterbox.models.s3gen.f0_predictor import ConvRNNF0Predictor
from chatterbox.models.s3gen.hifigan import HiFTGenerator
from chatterbox.models.s3gen.transformer.upsample_encoder import (
    PreLookaheadLayer, Upsample1D, UpsampleConformerEncoder)
from chatterbox.models.s3gen.xvector import CAMPPlus, FCM
from chatterbox.models.t3.llama_configs import LLAMA_CONFIGS
from chatterbox.models.t3.modules.perceiver import Perceiver
from chatterbox.models.voice_encoder import VoiceEncConfig, VoiceEncoder

import weights

VARIANTS = ("en", "mtl", "turbo", "nano")
FOLDER = {"en": "chatterbox", "mtl": "chatterbox", "turbo": "chatterbox-turbo", "nano": "chatterbox-nano"}
# Names of weight files, without `.safetensors`
T3_FILE = {"en": "t3_cfg", "mtl": "t3_mtl23ls_v2", "turbo": "t3_turbo_v1", "nano": "t3_nano_v1"}
S3GEN_FILE = {"en": "s3gen", "mtl": "s3gen", "turbo": "s3gen_meanflow", "nano": "s3gen_meanflow"}
GPT2 = ("turbo", "nano")

# Sizes of the tiny preset. `full` means: leave every official default alone. Heads are 64 wide everywhere, as in
# released models (the perceiver has 4 heads of any width), so head counts follow from shapes.
TINY = {
    "t3_llama": dict(hidden_size=128, intermediate_size=192, num_hidden_layers=3,
                     num_attention_heads=2, num_key_value_heads=2, head_dim=64),
    "t3_gpt2": {"turbo": dict(n_embd=128, hidden_size=128, n_layer=3, n_head=2, n_positions=768, n_ctx=768),
                "nano": dict(n_embd=192, hidden_size=192, n_layer=2, n_head=3, n_positions=768, n_ctx=768)},
    "speech_vocab": {"en": 6600, "mtl": 6600, "turbo": 6563, "nano": 6563},
    "text_vocab": {"en": 704, "mtl": 2454, "turbo": 1000, "nano": 1000},
    "max_text_tokens": 126, "max_speech_tokens": 252,
    "perceiver_heads": 4,
    "ve_hidden": 32,
    "s3tok": dict(n_audio_state=128, n_audio_head=2, n_audio_layer=2),
    "campplus": dict(growth_rate=4, bn_size=4, init_channels=16, fcm_channels=4),
    "enc": dict(input_size=16, output_size=128, attention_heads=2, linear_units=96, num_blocks=2, up_blocks=2),
    "dec": dict(channels=[32], attention_head_dim=64, num_heads=2, n_blocks=2, num_mid_blocks=2),
    "hift": dict(base_channels=32, f0_channels=32),
}


ALIGN_TINY = [[1, 1], [2, 0], [0, 1]]         # (layer, head) averaged by the 0.1.7 alignment analyzer


@contextlib.contextmanager
def patched(obj, **attrs):
    old = {k: getattr(obj, k) for k in attrs}
    for k, v in attrs.items():
        setattr(obj, k, v)
    try:
        yield
    finally:
        for k, v in old.items():
            setattr(obj, k, v)


# ---------------------------------------------------------------- builders
def t3_hparams(variant, preset):
    if variant == "en":
        hp = t3_config_mod.T3Config.english_only()
    elif variant == "mtl":
        hp = t3_config_mod.T3Config.multilingual()
    else:                                    # same values as ChatterboxTurboTTS.from_local
        hp = t3_config_mod.T3Config(text_tokens_dict_size=50276)
        hp.llama_config_name = "GPT2_medium" if variant == "turbo" else "GPT2_small"
        hp.speech_tokens_dict_size = 6563
        hp.input_pos_emb = None
        hp.speech_cond_prompt_len = 375
        hp.use_perceiver_resampler = False
        hp.emotion_adv = False
    if preset == "tiny":
        hp.text_tokens_dict_size = TINY["text_vocab"][variant]
        hp.speech_tokens_dict_size = TINY["speech_vocab"][variant]
        hp.max_text_tokens = TINY["max_text_tokens"]
        hp.max_speech_tokens = TINY["max_speech_tokens"]
        hp.llama_config_name = f"tiny_{variant}" if variant in GPT2 else "tiny_llama"
    return hp


def register_llama_configs():
    gpt2 = dict(LLAMA_CONFIGS["GPT2_medium"])
    # PyPI 0.1.7 predates Nano; values are those of the repository's GPT2_SMALL_CONFIG.
    LLAMA_CONFIGS.setdefault("GPT2_small", {**gpt2, "n_embd": 768, "hidden_size": 768,
                                            "n_head": 12, "n_layer": 12})
    for v in GPT2:
        LLAMA_CONFIGS[f"tiny_{v}"] = {**gpt2, **TINY["t3_gpt2"][v], "vocab_size": TINY["text_vocab"][v]}
    LLAMA_CONFIGS["tiny_llama"] = {**LLAMA_CONFIGS["Llama_520M"], **TINY["t3_llama"]}


def build_t3(variant, preset):
    register_llama_configs()
    hp = t3_hparams(variant, preset)
    perceiver = Perceiver
    if preset == "tiny":
        h = TINY["t3_llama"]["hidden_size"]
        perceiver = functools.partial(Perceiver, 32, h, h, TINY["perceiver_heads"])
        import chatterbox.models.t3.inference.alignment_stream_analyzer as asa
        asa.LLAMA_ALIGNED_HEADS = [tuple(x) for x in ALIGN_TINY]
    with patched(cond_enc_mod, Perceiver=perceiver):
        return t3_mod.T3(hp).eval()


def build_ve(preset):
    hp = VoiceEncConfig()
    if preset == "tiny":
        hp.ve_hidden_size = TINY["ve_hidden"]
    return VoiceEncoder(hp).eval()


def build_s3gen(meanflow, preset):
    if preset == "full":
        return s3gen_mod.S3Token2Wav(meanflow=meanflow).eval()
    enc_d = TINY["enc"]["output_size"]

    def tokenizer(name):
        cfg = s3tok_v2.ModelConfig(**TINY["s3tok"])
        init = s3tok_v2.S3TokenizerV2.__init__
        with patched(s3tok_v2.S3TokenizerV2, __init__=lambda self, n: init(self, n, cfg)):
            return s3gen_mod_S3Tokenizer(name)

    def campplus(**kw):
        c = dict(TINY["campplus"])
        block, blocks, _, feat = FCM.__init__.__defaults__      # (FCM cannot be wrapped: it names itself in super())
        with patched(FCM.__init__, __defaults__=(block, blocks, c.pop("fcm_channels"), feat)):
            return CAMPPlus(**{**kw, **c})

    def encoder(**kw):
        e = dict(TINY["enc"])
        up = e.pop("up_blocks")
        m = UpsampleConformerEncoder(**{**kw, **e})
        m.pre_lookahead_layer = PreLookaheadLayer(channels=enc_d, pre_lookahead_len=3)
        m.up_layer = Upsample1D(channels=enc_d, out_channels=enc_d, stride=2)
        m.up_embed = type(m.up_embed)(enc_d, enc_d, 0.1, m.up_embed.pos_enc)   # takes output_size, not input_size
        m.up_encoders = m.up_encoders[:up]
        return m

    s3gen_mod_S3Tokenizer = s3gen_mod.S3Tokenizer
    with patched(
        s3gen_mod,
        S3Tokenizer=tokenizer,
        CAMPPlus=campplus,
        UpsampleConformerEncoder=encoder,
        ConditionalDecoder=lambda **kw: ConditionalDecoder(**{**kw, **TINY["dec"]}),
        CausalMaskedDiffWithXvec=lambda **kw: CausalMaskedDiffWithXvec(input_size=TINY["enc"]["input_size"], **kw),
        ConvRNNF0Predictor=lambda: ConvRNNF0Predictor(cond_channels=TINY["hift"]["f0_channels"]),
        HiFTGenerator=lambda **kw: HiFTGenerator(base_channels=TINY["hift"]["base_channels"], **kw),
    ):
        return s3gen_mod.S3Token2Wav(meanflow=meanflow).eval()


# ---------------------------------------------------------------- random weights
def _round(x):
    """Four digits, so that listings stay short and parse to the same number everywhere."""
    return float(f"{x:.4g}")


def rules(module):
    """{name: (base, scale)} for every tensor of the state dict but computed buffers."""
    kinds, res = dict(module.named_modules()), {}
    for name, t in module.state_dict().items():
        if name.endswith(weights.COMPUTED):
            continue
        owner, _, leaf = name.rpartition(".")
        m = kinds.get(owner.removesuffix(".parametrizations.weight"))
        base, scale = 0.0, None
        if leaf in ("num_batches_tracked", "similarity_weight", "similarity_bias"):     # unused
            base, scale = {"similarity_weight": 10.0, "similarity_bias": -5.0}.get(leaf, 0.0), 0.0
        elif leaf == "running_var":
            base, scale = 1.24, 0.18
        elif name.endswith("f0_predictor.classifier.bias"):     # f0 like that of speech, partly unvoiced (< 10 Hz)
            base, scale = 50.0, 0.0
        elif name.endswith("mel2wav.conv_post.bias"):            # keeps exp() magnitudes below the 0.99 clamp
            base, scale = -1.5, 0.1
        elif leaf == "running_mean" or leaf.startswith("bias"):
            scale = 0.1
        elif leaf == "original0":             # weight-norm magnitude: sets the norm of a row
            base = 0.5 if "resblocks" in name else 1.0
            if "f0_predictor" in name:
                base = 1.4                    # keeps the f0 head lively through 5 ELU convolutions
            if "conv_post" in name:
                base = 2.5                    # varied magnitudes and phases
            if isinstance(m, nn.ConvTranspose1d):
                cin, cout, _ = m.weight.shape
                base *= math.sqrt(cout * m.stride[0] / cin)
            scale = 0.1 * base
        elif leaf == "original1":
            scale = 0.3
        elif leaf == "alpha":                 # Snake
            base, scale = 1.0, 0.25
        elif name.endswith("time_embed_mixer.weight"):
            scale = 0.7 / math.sqrt(t.shape[0])
        elif leaf == "weight" and t.ndim == 1:  # LayerNorm, RMSNorm, BatchNorm
            base, scale = 1.0, 0.1
        elif isinstance(m, nn.Embedding):
            scale = 0.6
        elif leaf in ("pre_attention_query", "pos_bias_u", "pos_bias_v"):
            scale = 0.5
        elif type(m).__name__ == "Conv1D":    # HF GPT-2 stores (in, out)
            scale = 1 / math.sqrt(t.shape[0])
        elif leaf.startswith("weight") and t.ndim >= 2:
            scale = 1 / math.sqrt(max(1, math.prod(t.shape[1:])))
            if name in ("speech_head.weight", "text_head.weight"):
                scale *= 2.5
            if name.endswith("project_down.weight"):
                scale *= 1.5
            if name.startswith("speaker_encoder."):     # eval-mode BatchNorm does not rescale: counter ReLU and sigmoid
                scale *= 1.45
            if name.endswith("f0_predictor.classifier.weight"):
                scale *= 90.0
        if scale is None:
            raise ValueError(f"no rule for {name} {tuple(t.shape)}")
        res[name] = _round(base), _round(scale)
    return res


@torch.no_grad()
def randomize_(module, seed, file):
    """Fills all tensors that have a rule. `file` is the file name without its ending: part of each tensor's key."""
    state = module.state_dict()
    for name, (base, scale) in rules(module).items():
        fill = weights.integers if state[name].dtype == torch.int64 else weights.floats
        state[name].copy_(torch.from_numpy(fill(seed, f"{file}/{name}", tuple(state[name].shape), base, scale)))
    return module


def build(variant, preset, seed):
    """(t3, s3gen, ve) for one variant. Variants share S3Gen and VoiceEncoder as the released repositories do."""
    t3 = randomize_(build_t3(variant, preset), seed, T3_FILE[variant])
    s3gen = randomize_(build_s3gen(variant in GPT2, preset), seed, S3GEN_FILE[variant])
    ve = randomize_(build_ve(preset), seed, "ve")
    return t3, s3gen, ve


def write_json(path, obj, **kw):
    path.write_text(json.dumps(obj, ensure_ascii=False, **kw) + "\n", encoding="utf-8")
