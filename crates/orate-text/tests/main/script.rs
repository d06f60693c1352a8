//! Markup. A segment is written `text {what differs from the default}`, and segments are joined by ` | `.

use super::english::Random;
use orate_text::Script;
use orate_text::script::Segment;

fn shown(script: &Script) -> String {
    script.segments.iter().map(segment).collect::<Vec<_>>().join(" | ")
}

fn segment(s: &Segment) -> String {
    let mut parts = vec![];
    let mut add = |name: &str, value: &dyn std::fmt::Display, is_usual: bool| {
        if !is_usual {
            parts.push(format!("{name}={value}"));
        }
    };
    add("voice", &s.voice.as_deref().unwrap_or(""), s.voice.is_none());
    add("lang", &s.language.as_deref().unwrap_or(""), s.language.is_none());
    add("rate", &s.rate, s.rate == 1.0);
    add("gain", &s.gain_db, s.gain_db == 0.0);
    add("pause", &s.pause_after, s.pause_after == 0.0);
    for mark in &s.marks {
        add("mark", &format!("{}@{}", mark.name, mark.at), false);
    }
    add("shown", &format!("{:?}", s.shown.text()), s.shown.text() == s.text.text());
    let text = s.text.text().replace('\n', "¶");
    if parts.is_empty() { text } else { format!("{text} {{{}}}", parts.join(" ")) }
}

/// Every part of every segment comes from whole characters of the input, in order.
fn check_sources(input: &str, script: &Script) {
    let mut end = 0;
    for s in &script.segments {
        for (i, c) in s.text.text().char_indices() {
            let source = s.text.source(i..i + c.len_utf8());
            assert!(s.shown.text().get(source.clone()).is_some(), "{input:?}: {source:?}");
        }
        for (i, c) in s.shown.text().char_indices() {
            let source = s.shown.source(i..i + c.len_utf8());
            assert!(source.end >= end && source.start <= source.end, "{input:?}: {source:?} after {end}");
            let written = input.get(source.clone());
            assert!(written.is_some(), "{input:?}: {source:?}");
            end = source.end;
        }
        assert!((0.0..=10.0).contains(&s.pause_after) && (0.25..=4.0).contains(&s.rate), "{input:?}");
        assert!(s.gain_db.is_finite());
        assert!(s.marks.iter().all(|mark| s.text.text().is_char_boundary(mark.at)), "{input:?}: {s:?}");
        assert!(s.marks.is_sorted_by_key(|mark| mark.at));
        let is_empty = s.text.text().is_empty();
        assert!(!is_empty || s.pause_after > 0.0 || !s.marks.is_empty(), "{input:?}: {s:?}");
    }
}

/// An SSML document without `speak`, its segments, and a part of each of its warnings.
type Case = (&'static str, &'static str, &'static [&'static str]);

const SSML: &[Case] = &[
    // White space.
    ("", "", &[]),
    (" \n\t ", "", &[]),
    ("Hello world.", "Hello world.", &[]),
    ("  Hello \n\t world.  ", "Hello world.", &[]),
    ("un<mark name='a'/>do", "undo {mark=a@2}", &[]),
    ("un<!-- no -->do", "undo", &[]),
    ("un<?pi?>do", "undo", &[]),
    ("un<w>do</w>ing", "undoing", &[]),
    ("a<w> b </w>c", "a b c", &[]),
    ("a\u{A0}b", "a\u{A0}b", &[]),
    // Characters.
    ("Q&amp;A &#x2014; &#233; &lt;b&gt;", "Q&A — é <b>", &[]),
    ("<![CDATA[a <b> & c]]>", "a <b> & c", &[]),
    ("x <![CDATA[y]]> z<![CDATA[!]]>", "x y z!", &[]),
    ("a&#32;b&#10;c", "a b c", &[]),
    ("雨が<mark name='x'/>やんだ。", "雨がやんだ。 {mark=x@6}", &[]),
    // Paragraphs and sentences.
    ("<p>One.</p><p>Two.</p>", "One.¶¶Two.", &[]),
    ("<p><s>One</s><s>two</s></p>three", "One¶¶two¶¶three", &[]),
    ("One<p>two</p>", "One¶¶two", &[]),
    ("<p/>a<p> </p>b", "a¶¶b", &[]),
    // Pauses.
    ("a<break/>b", "a {pause=0.5} | b", &[]),
    ("a <break time='1s'/> b", "a {pause=1} | b", &[]),
    ("a<break time='250ms'/>b", "a {pause=0.25} | b", &[]),
    ("a<break time=' 1.5s '/>b", "a {pause=1.5} | b", &[]),
    ("a<break time='0s'/>b", "ab", &[]),
    ("a<break strength='none'/>b<break strength='x-weak'/>c", "abc", &[]),
    ("a<break strength='weak'/>b<break strength='medium'/>c", "a {pause=0.25} | b {pause=0.5} | c", &[]),
    ("a<break strength='strong'/>b<break strength='x-strong'/>c", "a {pause=1} | b {pause=1.5} | c", &[]),
    ("a<break strength='weak' time='2s'/>b", "a {pause=2} | b", &[]),
    ("a<break time='4s'/> <break time='6s'/>b", "a {pause=10} | b", &[]),
    ("<break time='1s'/>a", " {pause=1} | a", &[]),
    ("a<break time='1s'/>", "a {pause=1}", &[]),
    ("<break/>", " {pause=0.5}", &[]),
    ("<p>a<break/></p><p>b</p>", "a {pause=0.5} | b", &[]),
    // Prosody.
    ("<prosody rate='slow'>a</prosody> b", "a {rate=0.75} | b", &[]),
    (
        "<prosody rate='x-slow'>a</prosody><prosody rate='x-fast'>b</prosody>",
        "a {rate=0.5} | b {rate=1.5}",
        &[],
    ),
    ("<prosody rate='fast'>a</prosody><prosody rate='medium'>b</prosody>", "a {rate=1.25} | b", &[]),
    ("<prosody rate='80%'>a</prosody>", "a {rate=0.8}", &[]),
    ("<prosody rate='+50%'>a</prosody>", "a {rate=1.5}", &[]),
    ("<prosody rate='2'>a <prosody rate='-50%'>b</prosody> c</prosody>", "a {rate=2} | b | c {rate=2}", &[]),
    ("a <prosody rate='default'>b</prosody> c", "a b c", &[]),
    (
        "<prosody volume='+6dB'>a<prosody volume='-2.5dB'>b</prosody></prosody>",
        "a {gain=6} | b {gain=3.5}",
        &[],
    ),
    (
        "<prosody volume='soft'>a</prosody><prosody volume='x-loud'>b</prosody>",
        "a {gain=-6} | b {gain=12}",
        &[],
    ),
    ("<prosody volume='silent'>a</prosody>", "a {gain=-96}", &[]),
    ("<prosody rate='fast' volume='loud'>a</prosody>", "a {rate=1.25 gain=6}", &[]),
    ("<prosody pitch='high'>a</prosody> b", "a b", &["`pitch`"]),
    ("<prosody>a</prosody>", "a", &[]),
    // Marks belong to the word before them.
    ("\"<prosody rate='2'>Stop</prosody>!\", he", "\" | Stop!\", {rate=2} | he", &[]),
    ("<voice name='B'>Hi</voice>.", "Hi. {voice=B}", &[]),
    ("Hi<break/>, you <break/>, I", "Hi, {pause=0.5} | you {pause=0.5} | , I", &[]),
    (
        "a<mark name='x'/>, <prosody rate='2'><sub alias='.b'>c</sub></prosody>",
        "a, {mark=x@1} | .b {rate=2 shown=\"c\"}",
        &[],
    ),
    ("<prosody rate='fast'><break/></prosody>a", " {rate=1.25 pause=0.5} | a", &[]),
    // Voices and languages.
    ("<voice name='F1'>a</voice><voice name='M1'>b</voice>", "a {voice=F1} | b {voice=M1}", &[]),
    ("<voice name='A'>a <voice name='B'>b</voice> c</voice>", "a {voice=A} | b {voice=B} | c {voice=A}", &[]),
    ("<voice name='A'>a</voice> <voice name='A'>b</voice>", "a b {voice=A}", &[]),
    ("<voice name='F1:0.7+M1:0.3'>a</voice>", "a {voice=F1:0.7+M1:0.3}", &[]),
    ("<voice name='nobody'>a</voice>", "a {voice=nobody}", &[]),
    ("<voice gender='female'>a</voice>", "a", &["`voice` without `name`"]),
    ("un<voice name='B'>do</voice>", "un | do {voice=B}", &[]),
    (
        "a <lang xml:lang='de-DE'>b <lang xml:lang='fr'>c</lang> d</lang> e",
        "a | b {lang=de} | c {lang=fr} | d {lang=de} | e",
        &[],
    ),
    ("<p xml:lang='es'>a</p><p>b</p>", "a {lang=es} | b", &[]),
    ("<voice name='A' xml:lang='ja'>a</voice>", "a {voice=A lang=ja}", &[]),
    ("<lang xml:lang='de'>a <lang xml:lang=''>b</lang></lang>", "a {lang=de} | b", &[]),
    (
        "<voice name='A'><prosody rate='fast'><lang xml:lang='de'>a</lang></prosody></voice>",
        "a {voice=A lang=de rate=1.25}",
        &[],
    ),
    // Substitutes.
    ("The <sub alias='sequel'>SQL</sub> server", "The sequel server {shown=\"The SQL server\"}", &[]),
    ("(<sub alias='see  dee'>C <b/>D</sub>)", "(see dee) {shown=\"(C D)\"}", &["`b` inside"]),
    ("a<sub alias='x'/>b", "axb", &[]),
    ("<sub alias='x'>y</sub><break/>z", "x {pause=0.5 shown=\"y\"} | z", &[]),
    ("<say-as interpret-as='characters'>FBI-2</say-as>", "F B I dash two {shown=\"FBI-2\"}", &[]),
    ("<say-as interpret-as='spell-out'>ab</say-as> c", "A B c {shown=\"ab c\"}", &[]),
    (
        "<say-as interpret-as='cardinal'>1,234</say-as>",
        "one thousand two hundred thirty-four {shown=\"1,234\"}",
        &[],
    ),
    ("<say-as interpret-as='cardinal'>007</say-as>", "seven {shown=\"007\"}", &[]),
    ("the <say-as interpret-as='ordinal'>3</say-as>.", "the third. {shown=\"the 3.\"}", &[]),
    (
        "<say-as interpret-as='date' format='dmy'>5/4/2024</say-as>",
        "the fifth of April twenty twenty-four {shown=\"5/4/2024\"}",
        &[],
    ),
    (
        "<say-as interpret-as='date'>2024-05-04</say-as>",
        "May fourth, twenty twenty-four {shown=\"2024-05-04\"}",
        &[],
    ),
    ("<say-as interpret-as='cardinal'>many</say-as>", "many", &["cannot be read as `cardinal`"]),
    ("<say-as interpret-as='time'>10:45</say-as>", "10:45", &["`say-as` as `time`"]),
    (
        "<lang xml:lang='de'><say-as interpret-as='cardinal'>5</say-as></lang>",
        "5 {lang=de}",
        &["English only"],
    ),
    (
        "<lang xml:lang='en-GB'><say-as interpret-as='cardinal'>5</say-as></lang>",
        "five {lang=en shown=\"5\"}",
        &[],
    ),
    ("<say-as interpret-as='cardinal'> </say-as>a", "a", &["cannot be read"]),
    // Marks.
    ("<mark name='a'/>Hi <mark name='b'/> you<mark name='c'/>", "Hi you {mark=a@0 mark=b@3 mark=c@6}", &[]),
    ("a<mark name='x'/><break/>b", "a {pause=0.5 mark=x@1} | b", &[]),
    ("a<break/><mark name='x'/>b", "a {pause=0.5} | b {mark=x@0}", &[]),
    ("<mark name='x'/>", " {mark=x@0}", &[]),
    ("a <mark name='x'/><voice name='B'>b</voice>", "a | b {voice=B mark=x@0}", &[]),
    // What is not supported.
    ("<emphasis level='strong'>a</emphasis> b", "a b", &["`emphasis`"]),
    ("<phoneme alphabet='ipa' ph='x'>tomato</phoneme>", "tomato", &["`phoneme`"]),
    ("<audio src='x.wav'><desc>a bell</desc>ring</audio>", "ring", &["`audio`"]),
    ("<foo><foo>a</foo></foo><bar/>", "a", &["`foo`", "`bar`"]),
    ("<metadata>no <b>no</b></metadata><meta name='x'/>yes", "yes", &[]),
    ("<x:s xmlns:x='urn:x'>a</x:s>b", "ab", &["`s`"]),
];

#[test]
fn ssml_cases() {
    let mut wrong = vec![];
    for (body, want, warnings) in SSML {
        let input = format!("<speak>{body}</speak>");
        let script = Script::ssml(&input, None).unwrap_or_else(|e| panic!("{body}: {e}"));
        check_sources(&input, &script);
        let fits = script.warnings.len() == warnings.len()
            && script.warnings.iter().zip(*warnings).all(|(got, part)| got.contains(part));
        if shown(&script) != *want || !fits {
            wrong.push(format!("\n  {body}\n  want {want}\n  got  {} {:?}", shown(&script), script.warnings));
        }
    }
    assert!(wrong.is_empty(), "{} of {} wrong:{}", wrong.len(), SSML.len(), wrong.concat());
}

#[test]
fn documents() {
    for (input, language, want) in [
        ("<?xml version='1.0'?>\n<speak version='1.1' xml:lang='en-US'>a</speak>", None, "a {lang=en}"),
        ("<speak xmlns='http://www.w3.org/2001/10/synthesis'><break/>a</speak>", None, " {pause=0.5} | a"),
        ("<s:speak xmlns:s='urn:ssml'>a<s:break/>b</s:speak>", None, "a {pause=0.5} | b"),
        ("\u{FEFF}<speak>a</speak>\n", None, "a"),
        ("<speak>a\r\n\r\nb</speak>", None, "a b"),
        ("<speak><say-as interpret-as='cardinal'>5</say-as></speak>", Some("de"), "5"),
        ("<speak><say-as interpret-as='cardinal'>5</say-as></speak>", Some("en"), "five {shown=\"5\"}"),
    ] {
        let script = Script::ssml(input, language).unwrap_or_else(|e| panic!("{input}: {e}"));
        check_sources(input, &script);
        assert_eq!(shown(&script), want, "{input}");
    }
}

#[test]
fn sources_of_ssml() {
    let input = "<speak>Tom &amp; <sub alias=\"sequel\">SQL</sub><![CDATA[ <x>]]> é&#233;</speak>";
    let script = Script::ssml(input, None).expect("well-formed");
    let s = &script.segments[0];
    assert_eq!(s.text.text(), "Tom & sequel <x> éé");
    for (part, written) in
        [("Tom", "Tom"), ("&", "&amp;"), ("sequel", "SQL"), ("<x>", "<x>"), ("éé", "é&#233;")]
    {
        let at = s.text.text().find(part).expect(part);
        let source = s.text.clone().after(&s.shown).source(at..at + part.len());
        assert_eq!(&input[source], written);
    }
}

#[test]
fn ssml_errors_say_where_and_what_to_do() {
    let deep = format!("<speak>{}a{}</speak>", "<p>".repeat(16), "</p>".repeat(16));
    let many = format!("<speak>{}</speak>", "<p/>".repeat(5000));
    let large = format!("<speak>{}</speak>", "a ".repeat(40_000));
    let long = format!("<speak><voice name='{}'>a</voice></speak>", "x".repeat(300));
    let laughs = "<!DOCTYPE speak [<!ENTITY a 'ha'><!ENTITY b '&a;&a;&a;'>]><speak>&b;</speak>";
    let external = "<?xml version='1.0'?>\n<!DOCTYPE speak SYSTEM 'file:///etc/passwd'><speak>a</speak>";
    for (input, want) in [
        ("", "not well-formed XML"),
        ("hello", "line 1, column 1: not well-formed XML"),
        ("<p>hello</p>", "line 1, column 1: the root element is `p`; put the text into `<speak>"),
        ("<speak>a", "not well-formed XML"),
        ("<speak><p>a</speak>", "line 1, column 12: not well-formed XML"),
        ("<speak>a</speak><speak/>", "not well-formed XML"),
        ("<speak><voice name='a'><prosody>x</voice></prosody></speak>", "not well-formed XML"),
        ("<speak>a & b</speak>", "column 10: `&` begins no entity; write `&amp;`"),
        ("<speak>&nbsp;</speak>", "the entity `nbsp` is unknown; XML has"),
        ("<speak>a\u{1}</speak>", "not well-formed XML"),
        ("<speak>&#0;</speak>", "`&` begins no entity"),
        (laughs, "line 1, column 1: the SSML document has a document type; remove"),
        (external, "line 2, column 1: the SSML document has a document type"),
        (&deep, "column 53: elements are nested deeper than 16"),
        (&many, "more than 4096 elements"),
        (&large, "line 1, column 1: the SSML document has 80015 bytes; send at most 65536"),
        (&long, "write a name of at most 256 bytes"),
        (
            "<speak>\n é<break time='20s'/></speak>",
            "line 2, column 10: `time` of `break` is `20s`; write 0s to 10s",
        ),
        ("<speak><break time='soon'/></speak>", "is `soon`"),
        ("<speak><break time='-1s'/></speak>", "is `-1s`"),
        ("<speak><break time='1e3s'/></speak>", "is `1e3s`"),
        ("<speak><break time='NaNs'/></speak>", "is `NaNs`"),
        ("<speak><break strength='hard'/></speak>", "`strength` of `break` is `hard`; write `none`"),
        ("<speak>a<break time='9s'/><break time='9s'/></speak>", "add up to more than 10 s"),
        ("<speak><prosody rate='0'>a</prosody></speak>", "`rate` of `prosody` is `0`; write 25%"),
        ("<speak><prosody rate='900%'>a</prosody></speak>", "is `900%`"),
        ("<speak><prosody rate='inf'>a</prosody></speak>", "is `inf`"),
        ("<speak><prosody volume='50'>a</prosody></speak>", "`volume` of `prosody` is `50`; write -96dB"),
        ("<speak><prosody volume='+99dB'>a</prosody></speak>", "is `+99dB`"),
        ("<speak><voice name=''>a</voice></speak>", "`name` of `voice` is ``"),
        ("<speak><lang xml:lang='deutsch!'>a</lang></speak>", "`lang` of `lang` is `deutsch!`; write a code"),
        ("<speak><sub>a</sub></speak>", "`sub` has no `alias`; add it"),
        ("<speak><say-as>a</say-as></speak>", "`say-as` has no `interpret-as`"),
        ("<speak><mark/></speak>", "`mark` has no `name`"),
    ] {
        let e = Script::ssml(input, None).expect_err(input).to_string();
        assert!(e.contains(want), "{input:.80}\n  want {want}\n  got  {e}");
        assert!(e.starts_with("line ") && e.len() < 400, "{e}");
    }
}

const TAGGED: &[(&str, &str)] = &[
    ("", ""),
    (" \n", ""),
    ("Hello  world.\nBye.", "Hello  world.¶Bye."),
    ("Hello [pause:1.5s] world.", "Hello {pause=1.5} | world."),
    ("Hello[pause:500ms]world.", "Hello {pause=0.5} | world."),
    ("[pause:1s]Hello.", " {pause=1} | Hello."),
    ("Hello.[pause:1s]", "Hello. {pause=1}"),
    ("[pause:1s][pause:2s]", " {pause=3}"),
    ("a [pause:0s] b", "a b"),
    (
        "[voice:F1] Who's there?\n[voice:M1] Me.\n\n[voice:F1]Who?",
        "Who's there? {voice=F1} | Me. {voice=M1} | Who? {voice=F1}",
    ),
    ("[voice:F1:0.7+M1:0.3]x", "x {voice=F1:0.7+M1:0.3}"),
    ("[voice:A]a [voice:A] b", "a b {voice=A}"),
    ("[pause:1s], a[rate:2]...) b [rate:1]. c", " {pause=1} | , a...) | b {rate=2} | . c"),
    ("[voice:A]a\n\n[voice:A]b", "a¶¶b {voice=A}"),
    ("one [rate:1.1]two [rate:1]three", "one | two {rate=1.1} | three"),
    ("un[rate:1]do", "undo"),
    ("[lang:de-DE]Hallo [lang:en]you", "Hallo {lang=de} | you {lang=en}"),
    ("[lang:Portuguese]Oi [lang:ENG]you", "Oi {lang=pt} | you {lang=en}"),
    ("[Voice: Ann Lee ]hi", "hi {voice=Ann Lee}"),
    ("[laugh] ok [sigh", "[laugh] ok [sigh"),
    ("a[0] [pause] [voice] [x:y] [[pause:1s]]", "a[0] [pause] [voice] [x:y] [ {pause=1} | ]"),
    ("雨[pause:1s]が", "雨 {pause=1} | が"),
];

#[test]
fn tagged_cases() {
    for (input, want) in TAGGED {
        let script = Script::tagged(input).unwrap_or_else(|e| panic!("{input}: {e}"));
        check_sources(input, &script);
        assert_eq!(shown(&script), *want, "{input:?}");
        assert!(script.warnings.is_empty());
    }
    for (input, want) in [
        ("Hi.\nAh [pause:abc]", "line 2, column 4: the pause of the tag is `abc`; write 0 to 10 seconds"),
        ("[pause:1]", "is `1`"),
        ("[pause:11s]", "is `11s`"),
        ("[pause:6s] [pause:6s]", "line 1, column 12: the pause of the tag is `6s`; pauses without text"),
        ("[pause: I think", "the tag `[pause:` has no `]`; close it"),
        ("[voice:\nA]", "has no `]`"),
        ("[voice: ]", "the voice of the tag is ``"),
        ("[rate:fast]", "the rate of the tag is `fast`; write 0.25 to 4"),
        ("[rate:0]", "is `0`"),
        ("[rate:nan]", "is `nan`"),
        ("[lang:?]", "the language of the tag is `?`"),
    ] {
        let e = Script::tagged(input).expect_err(input).to_string();
        assert!(e.contains(want), "{input}\n  want {want}\n  got  {e}");
    }
}

#[test]
fn plain_texts_stay() {
    for text in ["Hello [pause:1s] <b>you</b>.", " a\n\n b "] {
        let script = Script::plain(text);
        assert_eq!(script.segments.len(), 1);
        assert_eq!((script.segments[0].text.text(), script.segments[0].text.span()), (text, 0..text.len()));
        check_sources(text, &script);
    }
    assert_eq!(Script::plain(" \n"), Script::default());
}

/// Changed documents are scripts or errors, with sources in order either way.
#[test]
fn damaged_markup_does_no_harm() {
    let mut seeds: Vec<String> = SSML.iter().map(|(body, ..)| format!("<speak>{body}</speak>")).collect();
    seeds.extend(TAGGED.iter().map(|(input, _)| (*input).to_owned()));
    let parts = [
        "<",
        ">",
        "/",
        "&",
        ";",
        "'",
        "\"",
        "<p>",
        "</p>",
        "<break/>",
        "<s>",
        "<![CDATA[",
        "]]>",
        "<!--",
        "-->",
        "&amp;",
        "&#x10FFFF;",
        "[",
        "]",
        "[pause:1s]",
        "[voice:",
        "\n\n",
        " ",
        "é",
        "\u{301}",
        "😀",
        "\u{0}",
        "=",
        "<sub alias='x'>",
        "</sub>",
        "<mark name='m'/>",
        "xml:lang='de'",
        "<!DOCTYPE a>",
        "9",
    ];
    let mut random = Random(21);
    let (mut good, mut bad) = (0, 0);
    for _ in 0..30_000 {
        let mut text: Vec<char> = seeds[random.next(seeds.len())].chars().collect();
        for _ in 0..=random.next(3) {
            let at = random.next(text.len() + 1);
            match random.next(3) {
                0 => drop(text.splice(at..at, random.pick(&parts).chars())),
                1 => drop(text.drain(at..(at + random.next(6)).min(text.len()))),
                _ => {
                    let other: Vec<char> = seeds[random.next(seeds.len())].chars().collect();
                    let from = random.next(other.len() + 1);
                    text.splice(
                        at..at,
                        other[from..(from + random.next(20)).min(other.len())].iter().copied(),
                    );
                }
            }
        }
        let text: String = text.into_iter().collect();
        for script in [Script::ssml(&text, None), Script::tagged(&text)] {
            match script {
                Ok(script) => {
                    check_sources(&text, &script);
                    good += 1;
                }
                Err(e) => {
                    assert!(e.to_string().len() < 800, "{e}");
                    bad += 1;
                }
            }
        }
    }
    assert!(good > 5_000 && bad > 5_000, "{good} scripts, {bad} errors");
}

/// Documents that are as bad as the limits allow take well under a second.
#[test]
fn hostile_documents_are_quick() {
    let fill = |head: &str, part: &str, tail: &str| {
        let count = ((64 << 10) - 20 - head.len() - tail.len()) / part.len();
        format!("<speak>{head}{}{tail}</speak>", part.repeat(count))
    };
    let attributes: String = (0..6000).map(|i| format!(" a{i}=''")).collect();
    let namespaces: String = (0..3000).map(|i| format!(" xmlns:a{i}='{i}'")).collect();
    for (what, input) in [
        ("open", fill("", "<p>", "")),
        ("nested", format!("{}{}", "<speak>".repeat(4000), "</speak>".repeat(4000))),
        ("references", fill("", "&#65;", "")),
        ("broken references", fill("", "&aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "")),
        ("letters", fill("", "a ", "")),
        ("attributes", format!("<speak><p{attributes}>a</p></speak>")),
        ("namespaces", format!("<speak><p{namespaces}>a</p></speak>")),
        ("alias", fill("<sub alias='", "a ", "'>b</sub>")),
        ("digits", fill("<say-as interpret-as='characters'>", "1", "</say-as>")),
        ("amount", fill("<say-as interpret-as='cardinal'>", "1", "</say-as>")),
        ("date", fill("<say-as interpret-as='date'>", "1/", "</say-as>")),
        ("comments", fill("", "a<!---->", "")),
        ("cdata", fill("", "<![CDATA[a]]>", "")),
        ("breaks", fill("", "a<break/>", "")),
        ("tags", "[pause:1s]a".repeat(6000)),
        ("brackets", "[voice:".repeat(9000)),
    ] {
        let start = std::time::Instant::now();
        let _ = Script::ssml(&input, None).map(|script| check_sources(&input, &script));
        let _ = Script::tagged(&input).map(|script| check_sources(&input, &script));
        let seconds = start.elapsed().as_secs_f64();
        assert!(seconds < 3.0, "{what}: {seconds} s");
    }
}
