"""Times of words, captions, markup, lexicons, and scripts of several voices."""

import asyncio
import copy
import datetime
import html
import json
import pickle

import numpy
import pysubs2
import pytest
import srt
import webvtt
from test_engine import program

import orate

TEXT = "Dr. Smith paid $3.50. Then, he left 🙂 for Boston – at last."


def same(one, two):
    return numpy.array_equal(one.samples, two.samples)


def test_words_have_times_and_spans(engine):
    audio = engine.say(TEXT, words=True, skip_unknown=True)
    assert isinstance(audio.words, tuple) and audio.marks == ()
    words = ["Dr", "Smith", "paid", "$3.50", "Then", "he", "left", "for", "Boston", "at", "last"]
    assert [word.text for word in audio.words] == words
    assert [audio.words[i].display for i in [0, 3, 6, 8]] == ["Dr.", "$3.50.", "left 🙂", "Boston –"]
    for word in audio.words:
        start, end = word.span
        assert TEXT[start:end] == word.text and word.source == "attention"
        assert word.piece == (start >= TEXT.index("Then"))
        assert 0 <= word.start < word.end <= audio.duration
    for word, following in zip(audio.words, audio.words[1:]):
        assert word.end <= following.start and word.span[1] <= following.span[0]
    # Nothing else changes.
    assert engine.say(TEXT, skip_unknown=True).words == ()
    assert same(engine.say(TEXT, skip_unknown=True), audio)


def test_spans_are_in_characters(engine):
    # Each of these characters takes two to four bytes.
    text = "Ünö 🙂🙃 words. 東京 and café\n\nare 👩‍👩‍👧 far."
    lexicon = {"東京": "Tokyo", "Ünö": "you know"}
    audio = engine.say(text, words=True, lexicon=lexicon, skip_unknown=True)
    assert [word.text for word in audio.words] == ["Ünö", "words", "東京", "and", "café", "are", "far"]
    starts = [word.span[0] for word in audio.words]
    assert starts == [0, 7, 14, 17, 21, 27, len(text) - 4] == [text.index(word.text) for word in audio.words]
    assert all(text[slice(*word.span)] == word.text for word in audio.words)
    assert [word.piece for word in audio.words] == [0, 0, 1, 1, 1, 2, 2]


def test_streams_have_the_words_of_the_whole(engine, text):
    chunks = list(engine.stream(text, words=True, raw=True))
    whole = engine.say(text, words=True, raw=True)
    assert [word for chunk in chunks for word in chunk.words] == list(whole.words)
    assert [word.text for word in chunks[1].words] == "And this is the second one".split()
    assert chunks[1].words[0].start >= chunks[1].start / 24_000
    assert {word.piece for word in chunks[1].words} == {1}
    assert [chunk.words for chunk in engine.stream(text)] == [(), ()]

    async def read():
        return [chunk async for chunk in engine.astream(text, words=True, raw=True)]

    assert [chunk.words for chunk in asyncio.run(read())] == [chunk.words for chunk in chunks]


def test_other_models_estimate(supertonic):
    audio = supertonic.say("Hello there, all of you.", words=True, language="en")
    assert [word.text for word in audio.words] == ["Hello", "there", "all", "of", "you"]
    assert {word.source for word in audio.words} == {"estimated"}
    assert "words: estimated" in audio.captions("vtt") and "words: estimated" in audio.captions("json")


def test_words_are_frozen_values(engine):
    audio = engine.say("Hello there.", words=True)
    word = audio.words[0]
    assert repr(word) == f"<orate.Word \"Hello\": {word.start:.2f} to {word.end:.2f} s>"
    with pytest.raises(AttributeError):
        word.start = 3.0
    spoken_again = engine.say("Hello there.", words=True).words[0]
    for again in [pickle.loads(pickle.dumps(word)), copy.copy(word), spoken_again]:
        assert again == word and again is not word
    assert word != audio.words[1]
    mark = orate.Mark("a", 1.5)
    assert pickle.loads(pickle.dumps(mark)) == mark and repr(mark) == '<orate.Mark "a": 1.50 s>'


def test_captions_are_those_of_the_program(engine, tmp_path):
    text = "Dr. Smith paid $3.50 – for “naïve” art. Then he left for Boston, where it rained all day."
    audio = engine.say(text, words=True)
    for format in ["srt", "vtt", "json"]:
        ours, theirs = tmp_path / f"ours.{format}", tmp_path / f"theirs.{format}"
        audio.write_captions(ours)
        command = ["say", text, "--device", "cpu", "--threads", "2", "-q", "-o", tmp_path / "a.wav"]
        program(*command, "--captions", theirs)
        assert ours.read_text() == theirs.read_text() == audio.captions(format)
    assert audio.captions() == audio.captions("srt") and audio.captions().startswith("1\n00:00:00,")
    words = json.loads(audio.captions("json"))["words"]
    assert [tuple(word["span"]) for word in words] == [word.span for word in audio.words]
    # Also those of audio that was put together, and of pickled audio.
    chunks = list(engine.stream(text, words=True, raw=True))
    samples = numpy.concatenate([chunk.samples for chunk in chunks])
    joined = orate.Audio(samples, 24_000, [word for chunk in chunks for word in chunk.words])
    assert joined.captions("json") == engine.say(text, words=True, raw=True).captions("json")
    again = pickle.loads(pickle.dumps(audio))
    assert again.words == audio.words and again.captions("vtt") == audio.captions("vtt") and same(again, audio)


@pytest.mark.parametrize("text", [
    "Good morning, and welcome back. It costs $3.50 to get in; children pay nothing! Would you like to come along?",
    "Write <b>Q&A</b> --> {\\an8} here, and then 1 & 2 < 3.",
])
def test_other_parsers_read_captions(engine, tmp_path, text):
    audio = engine.say(text, words=True)
    cues = json.loads(audio.captions("json"))["cues"]
    lines = ["\n".join(cue["lines"]) for cue in cues]
    times = [(round(1000 * cue["start"]), round(1000 * cue["end"])) for cue in cues]
    for format in ["srt", "vtt"]:
        audio.write_captions(tmp_path / f"a.{format}")
        found = pysubs2.load(tmp_path / f"a.{format}", keep_html_tags=True)
        assert [(cue.start, cue.end) for cue in found] == times
    milliseconds = datetime.timedelta(milliseconds=1)
    found = list(srt.parse(audio.captions("srt")))
    assert [(cue.start // milliseconds, cue.end // milliseconds) for cue in found] == times
    # What players take for markup is changed.
    if "<" not in text:
        assert [cue.content for cue in found] == lines
    found = list(webvtt.read(tmp_path / "a.vtt"))
    assert [html.unescape(cue.raw_text) for cue in found] == lines


def test_captions_that_cannot_be(engine, tmp_path):
    silent = engine.say("Hello.")
    with pytest.raises(orate.InputError, match="words=True"):
        silent.captions()
    with pytest.raises(orate.InputError, match="words=True"):
        silent.write_captions(tmp_path / "a.srt")
    audio = engine.say("Hello.", words=True)
    with pytest.raises(orate.InputError, match="format is `ass`; choose srt, vtt, json"):
        audio.captions("ass")
    with pytest.raises(orate.InputError, match=r"a\.txt: name a file that ends in \.srt, \.vtt or \.json"):
        audio.write_captions(tmp_path / "a.txt")
    with pytest.raises(orate.DeviceError, match="none"):
        audio.write_captions(tmp_path / "none" / "a.srt")
    with pytest.raises(TypeError, match="words"):
        orate.Audio(audio.samples, 24_000, ["Hello"])
    assert list(tmp_path.iterdir()) == []


def test_ssml_and_tags(engine, tmp_path):
    usual = engine.say("Hello there.")
    ssml = "<speak>Hello <mark name='b'/>there.<break time='2s'/><mark name='end'/></speak>"
    audio = engine.say(ssml, ssml=True)
    assert abs(audio.duration - usual.duration - 2) < 0.01
    assert audio.words == () and [mark.name for mark in audio.marks] == ["b", "end"]
    with_words = engine.say(ssml, ssml=True, words=True)
    assert [word.text for word in with_words.words] == ["Hello", "there"]
    assert all(ssml[slice(*word.span)] == word.text for word in with_words.words)
    assert with_words.marks == audio.marks and audio.marks[0].time == with_words.words[1].start
    [chunk] = engine.stream(ssml, ssml=True)
    assert chunk.words == () and len(chunk.marks) == 2
    assert engine.say("[rate:0.8] Hello there.", tags=True).duration > 1.1 * usual.duration
    assert pickle.loads(pickle.dumps(audio)).marks == audio.marks
    # The program says the same, and its captions have the marks, too.
    command = ["say", ssml, "--ssml", "--device", "cpu", "--threads", "2", "-q", "-o", tmp_path / "a.wav"]
    program(*command, "--captions", tmp_path / "a.json")
    assert audio.encode("wav") == (tmp_path / "a.wav").read_bytes()
    assert with_words.captions("json") == (tmp_path / "a.json").read_text()
    marks = [(mark["mark"], mark["time"]) for mark in json.loads(with_words.captions("json"))["marks"]]
    assert marks == [(mark.name, pytest.approx(mark.time, abs=5e-4)) for mark in audio.marks]


@pytest.mark.parametrize("text, how, words", [
    ("<speak>Hello", {"ssml": True}, "line 1, column .*; "),
    ("<speak>\n <break time='1h'/>Hello</speak>", {"ssml": True}, "line 2, column 9.*1h.*; write 0s to 10s"),
    ("Hello [pause:long] there", {"tags": True}, "line 1, column 7.*long.*; "),
    ("[voice:nobody] Hello", {"tags": True}, '"nobody"; there are default; `voices` adds more'),
    ("[voice:/etc/passwd] Hello", {"tags": True}, '"/etc/passwd"; there are'),
    ("<speak>Hello</speak>", {"ssml": True, "tags": True}, "ssml=True or tags=True, not both"),
    ("Hello", {"voices": {"a": "default"}}, "ssml=True or tags=True"),
    ("Hello", {"lexicon": {"a": " "}}, "`a` in the lexicon: no spelling"),
    ("", {"lexicon": {"a": "b"}}, "nothing to say|empty|no text"),
])
def test_errors_of_markup_say_where_and_what_to_do(engine, text, how, words):
    for call in [engine.say, engine.stream, engine.astream]:
        with pytest.raises(orate.InputError, match=words):
            call(text, **how)


@pytest.mark.parametrize("how, words", [
    ({"lexicon": 3}, "lexicon is a int; give a dict or the path of a file"),
    ({"lexicon": {"a": 1}}, "words and spellings of a lexicon are str"),
    ({"tags": "yes"}, "argument 'tags'"),
    ({"seed": "one"}, "argument 'seed'"),
    ({"voice": 3}, "voice is a int; give an orate.Voice, a name or a path"),
    ({"tags": True, "voices": "F1"}, "voices is a str; give a dict by names"),
    ({"tags": True, "voices": {"a": 3}}, r'voices\["a"\] is a int'),
    ({"tags": True, "voices": {"a": ("F1", "M1")}}, r'voices\["a"\]: give an engine, its voice and a dict'),
    ({"tags": True, "voices": {"a": {"sped": 1}}}, r'voices\["a"\] got an unexpected .*did you mean speed'),
    ({"word": True}, r"say\(\) got .* 'word'; did you mean words"),
    ({"lexikon": {}}, "did you mean lexicon"),
])
def test_wrong_types_are_type_errors(engine, how, words):
    with pytest.raises(TypeError, match=words):
        engine.say("Hello.", **how)
    with pytest.raises(OverflowError, match="argument 'seed'"):
        engine.say("Hello.", seed=-1)


def test_batches_have_words_and_markup(engine, chatterbox):
    texts = ["Übung. [pause:1s] SQL.", "[voice:guest] Two."]
    for model, own in [(engine, {}), (chatterbox, {"max_codes": 20})]:
        options = {"tags": True, "words": True, "lexicon": {"SQL": "sequel"}, "voices": {"guest": engine}, **own}
        batch = model.say_batch(texts, skip_unknown=True, **options)
        for audio, text in zip(batch, texts, strict=True):
            alone = model.say(text, skip_unknown=True, **options)
            assert same(audio, alone) and audio.words == alone.words
        assert [word.span for word in batch[0].words] == [(0, 5), (18, 21)]
    (audio,) = engine.say_batch(["<speak>One. <mark name='two'/>Two.</speak>"], ssml=True)
    assert [mark.name for mark in audio.marks] == ["two"] and audio.words == ()
    assert engine.say_batch([]) == []
    with pytest.raises(orate.InputError, match='"bob"; there are guest'):
        engine.say_batch(["One.", "[voice:bob] Two."], **options)


def test_what_has_no_effect_is_a_warning(engine):
    text = "<speak><prosody pitch='high'>Hello.</prosody></speak>"
    with pytest.warns(UserWarning, match="pitch"):
        engine.say(text, ssml=True)
    with pytest.warns(UserWarning, match="pitch") as warned:
        engine.say_batch([text, text], ssml=True)
    assert len(warned) == 1


def test_lexicons_change_what_is_said_and_not_what_is_shown(engine, tmp_path):
    file = tmp_path / "words.txt"
    file.write_text("# names\nSQL = sequel\n")
    for lexicon in [{"SQL": "sequel"}, file, str(file)]:
        audio = engine.say("The SQL server.", lexicon=lexicon, words=True)
        assert same(audio, engine.say("The sequel server."))
        assert [word.text for word in audio.words] == ["The", "SQL", "server"]
        assert audio.words[1].span == (4, 7)
    assert same(engine.say("The SQL server.", lexicon={}), engine.say("The SQL server."))
    assert same(
        engine.say("[rate:1.0] The SQL server.", tags=True, lexicon={"SQL": "sequel"}),
        engine.say("The sequel server."),
    )
    file.write_text("SQL = sequel\nnothing\n")
    with pytest.raises(orate.InputError, match=r"words.txt.*line 2 of the lexicon: no `=`"):
        engine.say("Hello.", lexicon=file)
    with pytest.raises(orate.DeviceError, match="missing.txt"):
        engine.say("Hello.", lexicon=tmp_path / "missing.txt")


def test_a_dialogue_of_voices_and_models(engine, supertonic, chatterbox, recording):
    text = "[voice:ada] Who is there? [voice:guest] Me, at three. [voice:M1] And me. [voice:clone] And I."
    voice = chatterbox.clone(recording)
    voices = {
        "ada": "F1",
        "guest": engine,
        "clone": (chatterbox, voice, {"max_codes": 30, "seed": 9}),
    }
    speak = {"tags": True, "voices": voices, "language": "en", "raw": True}
    audio = supertonic.say(text, words=True, **speak)
    assert audio.sample_rate == supertonic.sample_rate
    texts = [word.text for word in audio.words]
    assert texts[:4] == ["Who", "is", "there", "Me"] and texts[-1] == "I"
    assert all(text[slice(*word.span)] == word.text for word in audio.words)
    sources = [word.source for word in audio.words]
    assert sources[:3] == ["estimated"] * 3 and sources[3:6] == ["attention"] * 3
    chunks = list(supertonic.stream(text, **speak))
    assert [chunk.text for chunk in chunks[:2]] == ["Who is there?", "Me, at three."]
    assert numpy.array_equal(numpy.concatenate([chunk.samples for chunk in chunks]), audio.samples)
    # Each speaks as it does alone: the first by samples, the built-in voice by its length.
    alone = supertonic.say("Who is there?", voice="F1", language="en", raw=True)
    assert numpy.array_equal(chunks[0].samples, alone.samples)
    guest = engine.say("Me, at three.", raw=True, silence=0)
    between = list(supertonic.stream(text, **{**speak, "silence": 0}))
    assert abs(len(between[1].samples) / 8000 - guest.duration) < 0.01

    # Options hold for each engine that has them, and those of a voice for it alone.
    slow = {**voices, "guest": (engine, {"speed": 0.7})}
    shorter = list(supertonic.stream(text, **{**speak, "speed": 1.5}))
    longer = list(supertonic.stream(text, **{**speak, "speed": 1.5, "voices": slow}))
    assert len(shorter[1].samples) < len(longer[1].samples)
    assert numpy.array_equal(shorter[0].samples, longer[0].samples)
    list(supertonic.stream(text, exaggeration=0.7, **speak))
    with pytest.raises(orate.InputError, match="exaggeration"):
        supertonic.say("[voice:ada] Hello.", exaggeration=0.7, tags=True, voices={"ada": "F1"}, language="en")
    with pytest.raises(orate.InputError, match="temperature"):
        supertonic.say(text, **{**speak, "voices": {**voices, "ada": ("F1", {"temperature": 1})}})


def test_voices_of_a_text_are_own_mixes_or_kept(supertonic, chatterbox, recording):
    mix = supertonic.say("Hello.", voice="F1:0.5+M1:0.5", language="en")
    assert same(supertonic.say("[voice:F1:0.5+M1:0.5] Hello.", tags=True, language="en"), mix)
    named = supertonic.say("[voice:F1] Hello.", tags=True, voices={"F1": "M1"}, language="en")
    assert same(named, supertonic.say("Hello.", voice="M1", language="en"))
    orate.voices()["me"] = voice = chatterbox.clone(recording)
    options = {"max_codes": 30, "tags": True}
    kept = chatterbox.say("[voice:me] Hello.", **options)
    assert same(kept, chatterbox.say("Hello.", voice=voice, max_codes=30))
    with pytest.raises(orate.InputError, match='"you"; there are.*me'):
        chatterbox.say("[voice:you] Hello.", **options)
    # A file is named by the call, never by the text.
    path = orate.voices().folder / "me.safetensors"
    assert path.exists()
    with pytest.raises(orate.InputError, match="the markup names a voice"):
        chatterbox.say(f"<speak><voice name='{path}'>Hello.</voice></speak>", ssml=True, max_codes=30)
    spoken = chatterbox.say("[voice:x] Hello.", voices={"x": path}, **options)
    assert same(spoken, kept)


def test_a_call_with_words_costs_little_more(engine):
    import time

    over = []
    for _ in range(20):
        begun = time.perf_counter()
        stream = engine.stream("Hi.", steps=1, words=True, tags=True, lexicon={"SQL": "sequel"})
        assert [word.text for chunk in stream for word in chunk.words] == ["Hi"]
        over.append(time.perf_counter() - begun - stream.seconds)
    assert 0 < min(over) < 1e-3
