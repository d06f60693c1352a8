//! Readings of English texts. Each row is text and reading; add a row with every new rule.

use orate_text::english::{DateOrder, Letters, Rules, fit_alphabet, read_aloud, read_aloud_with, speakable};

fn check(cases: &[(&str, &str)]) {
    let wrong: Vec<String> = cases
        .iter()
        .filter(|(text, want)| read_aloud(text) != *want)
        .map(|(text, want)| format!("\n  text {text:?}\n  want {want:?}\n  read {:?}", read_aloud(text)))
        .collect();
    assert!(wrong.is_empty(), "{} of {} wrong:{}", wrong.len(), cases.len(), wrong.concat());
}

#[test]
fn the_whole_sentence() {
    check(&[(
        "Dr. Smith paid $3.50 at 10:45 on 5 May 2024",
        "Doctor Smith paid three dollars and fifty cents at ten forty-five on the fifth of May twenty twenty-four",
    )]);
}

#[test]
fn ordinary_text_stays() {
    for text in [
        "",
        " ",
        "Hello, world!",
        "Don't stop; it's \"fine\" (really) - isn't it?",
        "“Curly” ‘quotes’ — and dashes – and… more.",
        "Line one.\n\nLine two.\t",
        "Ünïcödé, 漢字 и кириллица.",
        "NASA and NATO and OK.",
        "HELLO WORLD. GIVE US IT NOW.",
        "I am here. So was I. He Sat. The Sun. No. Mar the May.",
        "A plan. Plan B. Then",
        "one-two well-known x-ray",
        "He said 'no' and left...",
        "mr and mrs, st and dr",
        "Hmm, HMM, shh!",
        "Part I like.",
        "🙂",
    ] {
        assert_eq!(read_aloud(text), text);
    }
}

#[test]
fn sentences_without_a_space_between_them() {
    check(&[
        ("I went home.Then I slept.It was late.", "I went home. Then I slept. It was late."),
        ("Wow!Wow!wow?Yes.I do.", "Wow! Wow! wow? Yes. I do."),
        ("What?!No.", "What?! No."),
        ("J.Smith met J.R.R.Tolkien", "J.Smith met J.R.R.Tolkien"),
    ]);
}

#[test]
fn plain_numbers() {
    check(&[
        ("0", "zero"),
        ("7 cats", "seven cats"),
        ("42", "forty-two"),
        ("105", "one hundred five"),
        ("999", "nine hundred ninety-nine"),
        ("1,234,567", "one million two hundred thirty-four thousand five hundred sixty-seven"),
        ("12345", "twelve thousand three hundred forty-five"),
        ("1,000", "one thousand"),
        ("1000000000000", "one trillion"),
        ("1234567890123456", "one two three four five six seven eight nine zero one two three four five six"),
        ("007", "zero zero seven"),
        ("1, 2, 3", "one, two, three"),
        ("1,2", "one, two"),
        ("0.05", "zero point zero five"),
        ("3.14159", "three point one four one five nine"),
        (".5", "point five"),
        ("-3", "minus three"),
        ("\u{2212}3.5", "minus three point five"),
        ("It is 5.", "It is five."),
        ("(12)", "(twelve)"),
        ("Gate 12B", "Gate twelve B"),
        ("Call 911", "Call nine one one"),
        ("New York, NY 10017", "New York, NY one zero zero one seven"),
        ("a 50-50 chance", "a fifty-fifty chance"),
        ("10^-3", "ten to the power of minus three"),
        ("5 million", "five million"),
        ("1.5 million people", "one point five million people"),
        ("COVID-19", "COVID-nineteen"),
        ("a 5-year-old", "a five-year-old"),
        ("MP3", "M P three"),
        ("H2O", "H two O"),
        ("H₂O", "H two O"),
        ("5G", "five G"),
        ("3D", "three D"),
        ("４２", "forty-two"),
        ("10-20", "ten to twenty"),
        ("pages 10–20", "pages ten to twenty"),
        ("5 - 10 people", "five to ten people"),
        ("10 - 5 = 5", "ten minus five equals five"),
        ("won 3-2", "won three to two"),
        ("1.2.3", "one point two point three"),
        ("v2.0", "version two point zero"),
        ("192.168.0.1", "one nine two dot one six eight dot zero dot one"),
        ("3x4", "three by four"),
        ("3 x 4", "three by four"),
        ("1920x1080", "nineteen twenty by one thousand eighty"),
        ("3x faster", "three times faster"),
        ("10²", "ten squared"),
        ("2^10", "two to the power of ten"),
        ("#5", "number five"),
        ("No. 5", "Number five"),
    ]);
}

#[test]
fn years_and_decades() {
    check(&[
        ("in 1905", "in nineteen oh five"),
        ("1905", "nineteen oh five"),
        ("1999", "nineteen ninety-nine"),
        ("2000", "two thousand"),
        ("2008", "two thousand eight"),
        ("2010", "twenty ten"),
        ("2024.", "twenty twenty-four."),
        ("1900", "nineteen hundred"),
        ("in 1066", "in ten sixty-six"),
        ("1066 apples", "one thousand sixty-six apples"),
        ("1812 soldiers", "one thousand eight hundred twelve soldiers"),
        ("1,999", "one thousand nine hundred ninety-nine"),
        ("the 1990s", "the nineteen nineties"),
        ("the 1990's", "the nineteen nineties"),
        ("the '90s", "the nineties"),
        ("the 80s", "the eighties"),
        ("100s of 1000s", "hundreds of thousands"),
        ("in '85, she", "in eighty-five, she"),
        ("the 2000s", "the two thousands"),
        ("the 1900s", "the nineteen hundreds"),
        ("1914–1918", "nineteen fourteen to nineteen eighteen"),
        ("1914-18", "nineteen fourteen to eighteen"),
        ("44 BC", "forty-four B C"),
        ("500 BCE, AD 79 and 1066 CE", "five hundred B C E, A D seventy-nine and ten sixty-six C E"),
        ("wait for 30s", "wait for thirty seconds"),
    ]);
}

#[test]
fn ordinals_and_fractions() {
    check(&[
        ("1st", "first"),
        ("2nd", "second"),
        ("3rd", "third"),
        ("21st", "twenty-first"),
        ("the 20th century", "the twentieth century"),
        ("19th-century art", "nineteenth-century art"),
        ("100th", "one hundredth"),
        ("1,000th", "one thousandth"),
        ("112TH", "one hundred twelfth"),
        ("1/2", "one half"),
        ("½", "one half"),
        ("2½", "two and a half"),
        ("1 1/2 cups", "one and a half cups"),
        ("3 ⅛ in", "three and an eighth in"),
        ("2/3", "two thirds"),
        ("3/4", "three quarters"),
        ("1⁄4", "one quarter"),
        ("7/10", "seven tenths"),
        ("5/4", "five quarters"),
        ("22/37", "twenty-two over thirty-seven"),
        ("24/7", "twenty-four seven"),
        ("a 50/50 chance", "a fifty-fifty chance"),
        ("1/3rd, 2/3rds of 1/10th", "one third, two thirds of one tenth"),
        ("1/2 km", "one half kilometer"),
    ]);
}

#[test]
fn roman_numerals_that_are_headings() {
    check(&[
        ("XIV", "Fourteen"),
        ("XIV.", "Fourteen."),
        ("IV\n\nText. XIV", "Four\n\nText. XIV"),
        ("III. The Storm", "Three. The Storm"),
        ("XLI — The Storm", "Forty-one — The Storm"),
        ("II is a word", "II is a word"),
        ("I. The Storm", "I. The Storm"),
        ("MIX", "MIX"),
        ("XL", "X L"),
        ("CD", "C D"),
    ]);
}

#[test]
fn marks_of_notes_have_no_sound() {
    let known = |c: char| c.is_ascii_alphabetic() || c == ' ';
    assert_eq!(fit_alphabet("word† and‡", known).as_deref(), Ok("word and"));
}

#[test]
fn money() {
    check(&[
        ("$1", "one dollar"),
        ("$2", "two dollars"),
        ("$3.50", "three dollars and fifty cents"),
        ("$1.01", "one dollar and one cent"),
        ("$0.99", "ninety-nine cents"),
        ("$0.01", "one cent"),
        ("$5.00", "five dollars"),
        ("$0.00", "zero dollars"),
        ("$1,000.50", "one thousand dollars and fifty cents"),
        ("£5", "five pounds"),
        ("£1.20", "one pound and twenty pence"),
        ("€1.20", "one euro and twenty cents"),
        ("€20", "twenty euros"),
        ("20€", "twenty euros"),
        ("20 EUR", "twenty euros"),
        ("¥500", "five hundred yen"),
        ("$1.5 million", "one point five million dollars"),
        ("$5bn", "five billion dollars"),
        ("$10k", "ten thousand dollars"),
        ("a $5 bill", "a five dollar bill"),
        ("a $2 million house", "a two million dollar house"),
        ("$5-10", "five to ten dollars"),
        ("$5-$10", "five dollars to ten dollars"),
        ("-$5", "minus five dollars"),
        ("US$5", "five U S dollars"),
        ("A$3", "three Australian dollars"),
        ("$9.99/month", "nine dollars and ninety-nine cents per month"),
        ("50¢", "fifty cents"),
        ("It cost $5.", "It cost five dollars."),
        ("$0.005", "zero point zero zero five dollars"),
        ("$1605", "one thousand six hundred five dollars"),
    ]);
}

#[test]
fn units() {
    check(&[
        ("5%", "five percent"),
        ("5 %", "five percent"),
        ("5-10%", "five to ten percent"),
        ("0.5%", "zero point five percent"),
        ("5 km", "five kilometers"),
        ("5km", "five kilometers"),
        ("1 km", "one kilometer"),
        ("1.0 km", "one point zero kilometers"),
        ("3 kg", "three kilograms"),
        ("3.5 GB", "three point five gigabytes"),
        ("10 ft", "ten feet"),
        ("10 ft.", "ten feet."),
        ("10 in. of rain", "ten inches of rain"),
        ("10 ft. of rope", "ten feet of rope"),
        ("20°C", "twenty degrees Celsius"),
        ("20 °C", "twenty degrees Celsius"),
        ("-5°F", "minus five degrees Fahrenheit"),
        ("1°", "one degree"),
        ("a 90° turn", "a ninety degree turn"),
        ("60 mph", "sixty miles per hour"),
        ("100 km/h", "one hundred kilometers per hour"),
        ("9.8 m/s²", "nine point eight meters per second squared"),
        ("50 m²", "fifty square meters"),
        ("50 m2", "fifty square meters"),
        ("5'10\"", "five foot ten"),
        ("6′2″", "six foot two"),
        ("a 12\" disc", "a twelve inch disc"),
        ("\"I have 12\"", "\"I have twelve\""),
        ("a 5 km run", "a five kilometer run"),
        ("a 5-km run", "a five-kilometer run"),
        ("5 in the morning", "five in the morning"),
        ("5 A students", "five A students"),
        ("2.4 GHz", "two point four gigahertz"),
        ("230 V", "two hundred thirty volts"),
        ("5 lbs", "five pounds"),
        ("100 Mbps", "one hundred megabits per second"),
        ("10-20 km", "ten to twenty kilometers"),
        ("1500 m", "one thousand five hundred meters"),
        ("5M", "five million"),
        ("5 kmx", "five kmx"),
        ("45 min.", "forty-five minutes."),
        ("3 g/l", "three grams per liter"),
    ]);
}

#[test]
fn times() {
    check(&[
        ("10:45", "ten forty-five"),
        ("7:00", "seven o'clock"),
        ("7:05", "seven oh five"),
        ("3:05 pm", "three oh five P M"),
        ("3:00pm", "three P M"),
        ("3 pm", "three P M"),
        ("3pm.", "three P M."),
        ("at 5 p.m. sharp", "at five P M sharp"),
        ("at 5 p.m. He left", "at five P M. He left"),
        ("at 5 p.m. Monday", "at five P M Monday"),
        ("at 5 p.m.", "at five P M."),
        ("14:00", "fourteen hundred"),
        ("14:05", "fourteen oh five"),
        ("12:00", "twelve o'clock"),
        ("12:00 am", "twelve A M"),
        ("12:00 pm", "twelve P M"),
        ("00:00", "midnight"),
        ("00:30", "zero thirty"),
        ("9:00-17:00", "nine o'clock to seventeen hundred"),
        ("10:45:30", "ten forty-five and thirty seconds"),
        ("10.30 am", "ten thirty A M"),
        ("16:9", "sixteen to nine"),
        ("5 am I", "five A M I"),
        ("John 3:16", "John three sixteen"),
    ]);
}

#[test]
fn dates() {
    check(&[
        ("5 May 2024", "the fifth of May twenty twenty-four"),
        ("the 5 May", "the fifth of May"),
        ("1st May", "the first of May"),
        ("the 1st of May", "the first of May"),
        ("May 5, 2024", "May fifth, twenty twenty-four"),
        ("May 5, 2024, we", "May fifth, twenty twenty-four, we"),
        ("May 5", "May fifth"),
        ("May 5th", "May fifth"),
        ("July 4 1776", "July fourth, seventeen seventy-six"),
        ("May 2024", "May twenty twenty-four"),
        ("2024-05-05", "May fifth, twenty twenty-four"),
        ("2024-05-05T10:00 on", "May fifth, twenty twenty-four, ten o'clock on"),
        ("5/4/2024", "May fourth, twenty twenty-four"),
        ("25/12/2024", "December twenty-fifth, twenty twenty-four"),
        ("05/04/99", "May fourth, nineteen ninety-nine"),
        ("5.4.2024", "the fifth of April twenty twenty-four"),
        ("on 5/4", "on May fourth"),
        ("Jan. 5", "January fifth"),
        ("Sept. 11, 2001", "September eleventh, two thousand one"),
        ("5 Jan 2020", "the fifth of January twenty twenty"),
        ("9/11", "nine eleven"),
        ("Mon., 3 Feb.", "Monday, the third of February."),
        ("32 May", "thirty-two May"),
        ("March 5 km", "March five kilometers"),
        ("99/99/9999", "ninety-nine slash ninety-nine slash nine thousand nine hundred ninety-nine"),
    ]);
    let rules = Rules { date_order: DateOrder::DayFirst, ..Rules::default() };
    assert_eq!(read_aloud_with("on 5/4/2024", &rules), "on the fifth of April twenty twenty-four");
    assert_eq!(read_aloud_with("2024-12-25", &rules), "the twenty-fifth of December twenty twenty-four");
}

#[test]
fn telephone_numbers() {
    check(&[
        ("555-1234", "five five five, one two three four"),
        ("555-123-4567.", "five five five, one two three, four five six seven."),
        ("(555) 123-4567", "five five five, one two three, four five six seven"),
        ("1-800-555-0199", "one, eight zero zero, five five five, zero one nine nine"),
        ("+44 20 7946 0958", "four four, two zero, seven nine four six, zero nine five eight"),
        ("020 7946 0958", "zero two zero, seven nine four six, zero nine five eight"),
        ("123-45-6789", "one two three, four five, six seven eight nine"),
        ("100-1000", "one hundred to one thousand"),
        ("+5", "plus five"),
    ]);
}

#[test]
fn abbreviations() {
    check(&[
        ("Mr. and Mrs. Jones", "Mister and Missus Jones"),
        ("Mr Jones", "Mister Jones"),
        ("Ms. Lee", "Miz Lee"),
        ("Prof. Lee", "Professor Lee"),
        ("Meet Dr. Who.", "Meet Doctor Who."),
        ("123 Elm Dr. Springfield", "one hundred twenty-three Elm Drive Springfield"),
        ("on Elm Dr.", "on Elm Drive."),
        ("on Elm Dr. He left", "on Elm Drive. He left"),
        ("St. Paul", "Saint Paul"),
        ("on Main St.", "on Main Street."),
        ("on Main St. near us", "on Main Street near us"),
        ("12 King St. London", "twelve King Street London"),
        ("Fifth Ave. is long", "Fifth Avenue is long"),
        ("Gen. Lee", "General Lee"),
        ("Gen. here", "Gen. here"),
        ("John Smith Jr. spoke", "John Smith Junior spoke"),
        ("Acme Inc. said", "Acme Incorporated said"),
        ("Acme Co. Ltd.", "Acme Company Limited."),
        ("Smith & Co. sells", "Smith and Company sells"),
        ("pears, e.g., plums", "pears, for example, plums"),
        ("E.g. plums", "For example plums"),
        ("soft, i.e. ripe", "soft, that is ripe"),
        ("pears, etc.", "pears, et cetera."),
        ("pears, etc. and more", "pears, et cetera and more"),
        ("pears, etc. He ate", "pears, et cetera. He ate"),
        ("cats vs. dogs", "cats versus dogs"),
        ("approx. 5", "approximately five"),
        ("the dept. of", "the department of"),
        ("No. 5", "Number five"),
        ("no. 5", "number five"),
        ("No. That is all.", "No. That is all."),
        ("pp. 5-7", "pages five to seven"),
        ("Vol. 3", "Volume three"),
        ("U.S. Steel", "U S Steel"),
        ("in the U.S. He", "in the U S. He"),
        ("in the U.S.", "in the U S."),
        ("in the U.S.A., too", "in the U S A, too"),
        ("A.I.?", "A I?"),
        ("a Ph.D. in law", "a P H D in law"),
        ("J. R. R. Tolkien", "J R R Tolkien"),
        ("George W. Bush", "George W Bush"),
        ("et al. found", "et al found"),
        ("w/o sugar, w/ milk", "without sugar, with milk"),
        ("Mt. Everest", "Mount Everest"),
        ("Henry VIII", "Henry the Eighth"),
        ("World War II", "World War Two"),
        ("Chapter IV", "Chapter Four"),
        ("Queen Elizabeth II", "Queen Elizabeth the Second"),
        ("Rocky III", "Rocky Three"),
        ("Vol. II", "Volume two"),
        ("WWII", "World War Two"),
        ("3's company", "three's company"),
        ("Malcolm X", "Malcolm X"),
    ]);
}

#[test]
fn acronyms() {
    check(&[
        ("the USA", "the U S A"),
        ("FBI, CIA", "F B I, C I A"),
        ("HTML", "H T M L"),
        ("NASA", "NASA"),
        ("two TVs", "two T V's"),
        ("the CEO's desk", "the C E O's desk"),
        ("a PhD", "a P H D"),
        ("R&D", "R and D"),
        ("AT&T", "A T and T"),
        ("TCP/IP", "T C P I P"),
        ("IT staff", "I T staff"),
        ("DO IT NOW", "DO IT NOW"),
    ]);
    let say = |letters, text| read_aloud_with(text, &Rules { letters, ..Rules::default() });
    assert_eq!(say(Letters::Names, "The FBI at 5 pm"), "The eff bee eye at five pee em");
    assert_eq!(say(Letters::Keep, "The FBI at 5 p.m. sharp"), "The FBI at five PM sharp");
    // A letter alone on its line or in its sentence, and only such a one.
    assert_eq!(say(Letters::Names, "X"), "ex");
    assert_eq!(say(Letters::Names, "\"a\"!\n(b)\n\nI am. I."), "\"ay\"!\n(bee)\n\nI am. I.");
    assert_eq!(say(Letters::Names, "Plan B\n7 x\né"), "Plan B\nseven x\nee");
    for (text, read) in [
        ("Do you know plan A? B?", "Do you know plan A? bee?"),
        ("Plan A! \"B\"?! Plan C. Go.", "Plan A! \"bee\"?! Plan C. Go."),
        ("Is it B? C.", "Is it B? see."),
        ("É! Go on. E\u{301}? Ａ", "ee! Go on. ee? ay"),
        ("Who? I! A? Not I. Is it a? I am.", "Who? eye! ay? Not I. Is it a? I am."),
        ("It was J. Smith. No.", "It was J. Smith. No."),
        ("Is x + y! or Mr. X? Don't go.", "Is x plus y! or Mister X? Don't go."),
        ("ß? ﬁ? 漢? æ!", "ß? ﬁ? 漢? æ!"),
    ] {
        assert_eq!(say(Letters::Names, text), read);
    }
    assert_eq!(say(Letters::Spaced, "X"), "X");
}

#[test]
fn signs() {
    check(&[
        ("salt & pepper", "salt and pepper"),
        ("2 + 3 = 5", "two plus three equals five"),
        ("2+3=5", "two plus three equals five"),
        ("5 * 3", "five times three"),
        ("5 × 3", "five times three"),
        ("6 ÷ 2", "six divided by two"),
        ("a < b > c", "a less than b greater than c"),
        ("x <= 5", "x is less than or equal to five"),
        ("~50", "about fifty"),
        ("±5", "plus or minus five"),
        ("§ 5", "section five"),
        ("© 2024", "copyright twenty twenty-four"),
        ("and/or", "and or"),
        ("he/she", "he slash she"),
        ("5 km/day", "five kilometers per day"),
        ("**bold** and _it_", "bold and  it "),
        ("* item", " item"),
        ("# Title", " Title"),
        ("C++", "C plus plus"),
        ("C#", "C sharp"),
        ("A+", "A plus"),
        ("@home", "at home"),
        ("#HelloWorld", "hashtag Hello World"),
        ("A -> B", "A to B"),
        ("<b>bold</b><br/>", "bold"),
        ("snake_case", "snake case"),
        ("Brand™", "Brand"),
        ("$", "dollar"),
        ("100%", "one hundred percent"),
        ("-----", "-----"),
    ]);
}

#[test]
fn addresses() {
    check(&[
        ("example.com", "example dot com"),
        ("See https://www.example.com/a-b.", "See example dot com slash a dash b."),
        ("http://x.org/?q=1", "x dot org slash question mark q equals one"),
        ("me@example.com!", "me at example dot com!"),
        ("j.doe@mail.co.uk", "j dot doe at mail dot co dot U K"),
        ("(www.bbc.co.uk)", "(B B C dot co dot U K)"),
        ("Node.js", "Node dot J S"),
        ("end.Next", "end. Next"),
    ]);
}

const PLAIN: &str = " .,?!'-;:\"";

pub fn plain(c: char) -> bool {
    c.is_ascii_alphabetic() || PLAIN.contains(c)
}

#[test]
fn folding() {
    for (text, want) in [
        ("Café Ångström naïve", "Cafe Angstrom naive"),
        ("Straße, Ærø, œuvre, Łódź", "Strasse, Aero, oeuvre, Lodz"),
        ("“Well” – it’s ‘fine’…", "\"Well\" - it's 'fine'."),
        ("yes — no", "yes, no"),
        ("yes—no", "yes, no"),
        ("this (and that), too", "this, and that, too"),
        ("this (and that).", "this, and that."),
        ("(all)", "all"),
        ("hi 🙂 there 👩‍🚀", "hi  there"),
        ("well🙂👍done🙂, ok⏰", "well done, ok"),
        ("ﬁne", "fine"),
        ("¿Qué?", "Que?"),
        ("a\u{200B}b\u{A0}c\n", "ab c "),
        ("", ""),
    ] {
        assert_eq!(fit_alphabet(text, plain).as_deref(), Ok(want), "{text:?}");
    }
    assert_eq!(fit_alphabet("ok 漢 5", plain), Err(vec!['5', '漢']));
    assert_eq!(fit_alphabet("🙂 ", plain), Err(vec!['🙂']));
    assert_eq!(fit_alphabet("(é)", |_| true).as_deref(), Ok("(é)"));
}

#[test]
fn pieces() {
    let say = |text: &str, max| speakable(text, &Rules::default(), max, plain);
    assert_eq!(say("Hello", 168).unwrap(), ["Hello."]);
    assert_eq!(say("What?!  Well...\n\nNew -- line", 168).unwrap(), ["What? Well.", "New, line."]);
    assert_eq!(say("He said \"no\"", 168).unwrap(), ["He said \"no\"."]);
    let long = "a word or two, ".repeat(100);
    for max in [20, 168] {
        let pieces = say(&long, max).unwrap();
        assert!(pieces.iter().all(|p| p.chars().count() <= max), "{pieces:?}");
    }
    assert!(say("", 168).unwrap_err().to_string().contains("nothing to say"));
    assert!(say("...", 168).is_err());
    let error = say("Kanji 漢", 168).unwrap_err().to_string();
    assert!(error.contains("`漢` (U+6F22)"), "{error}");
}

/// A small deterministic generator (splitmix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % below as u64) as usize
    }

    pub fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.next(from.len())]
    }
}

pub const SCRAPS: &[&str] = &[
    "1",
    "23",
    "2024",
    "007",
    "1,000",
    "99999999999999999999999999",
    "0",
    ".",
    ",",
    "-",
    "–",
    "/",
    ":",
    "'",
    "\"",
    "$",
    "€",
    "%",
    "°C",
    "°",
    "km",
    "km/h",
    "m²",
    "s",
    "th",
    "st",
    "am",
    "p.m.",
    " ",
    " ",
    " ",
    "\n",
    "\n\n",
    "May",
    "Jan.",
    "Dr.",
    "St.",
    "Mr.",
    "U.S.",
    "e.g.",
    "No.",
    "II",
    "X",
    "I",
    "Henry",
    "Part",
    "FBI",
    "CEO's",
    "v",
    "x",
    "w/",
    "#",
    "@",
    "+",
    "=",
    "*",
    "_",
    "<",
    ">",
    "~",
    "^",
    "|",
    "\\",
    "(",
    ")",
    "[",
    "½",
    "²",
    "⁄",
    "″",
    "′",
    "é",
    "ß",
    "🙂",
    "漢",
    "\u{301}",
    "\u{200D}",
    "\u{0}",
    "\u{10FFFF}",
    "١",
    "①",
    "a",
    "the",
    "example.com",
    "http://",
    "me@x.org",
    "million",
    "’",
    "”",
    "…",
    "±",
    "№",
    "\u{A0}",
    "\u{2028}",
    "Straße",
];

#[test]
fn random_scraps() {
    let mut random = Random(1);
    for _ in 0..40_000 {
        let length = random.next(14);
        let text: String = (0..length).map(|_| random.pick(SCRAPS)).collect();
        let read = read_aloud(&text);
        assert!(!read.bytes().any(|b| b.is_ascii_digit()), "digits left in {text:?}: {read:?}");
        assert!(
            !read.contains(['$', '%', '&', '+', '=', '@', '#', '*', '<', '>', '_', '\\']),
            "{text:?}: {read:?}"
        );
        match fit_alphabet(&read, plain) {
            Ok(fitted) => assert!(fitted.chars().all(plain), "{text:?}: {fitted:?}"),
            Err(missing) => assert!(!missing.is_empty()),
        }
        if let Ok(pieces) = speakable(&text, &Rules::default(), 40, plain) {
            for piece in pieces {
                assert!(piece.chars().all(plain) && piece.len() <= 40, "{text:?}: {piece:?}");
            }
        }
    }
}

#[test]
fn random_characters() {
    let mut random = Random(2);
    for _ in 0..20_000 {
        let length = random.next(30);
        let limit = [0x80, 0x250, 0x3000, 0x11_0000][random.next(4)];
        let text: String = (0..length).filter_map(|_| char::from_u32(random.next(limit) as u32)).collect();
        let read = read_aloud(&text);
        assert!(!read.bytes().any(|b| b.is_ascii_digit()), "{text:?}: {read:?}");
        if let Ok(fitted) = fit_alphabet(&read, plain) {
            assert!(fitted.chars().all(plain), "{text:?}: {fitted:?}");
        }
        let _ = orate_text::supertonic::normalize(&text);
        let _ = orate_text::pieces::of_sentences(&text, length);
    }
}

#[test]
fn random_ordinary_text_stays() {
    const WORDS: &[&str] = &[
        "the",
        "a",
        "cat",
        "Paris",
        "don't",
        "naïve",
        "O'Brien",
        "well-known",
        "I",
        "Äpfel",
        "Hello",
        "may",
        "us",
        "OK",
        "sun",
        "(really)",
        "“quoted”",
        "never;",
        "yes,",
        "now",
        "mother-in-law",
    ];
    let mut random = Random(3);
    for _ in 0..5_000 {
        let mut text = String::new();
        for _ in 0..=random.next(12) {
            text.push_str(random.pick(WORDS));
            text.push_str(random.pick(&[" ", " ", " ", ", ", " – ", "\n", "  "]));
        }
        text.push_str(random.pick(&["end.", "end!", "end?", "end…", "end"]));
        assert_eq!(read_aloud(&text), text);
    }
}

/// A megabyte of anything takes well under a second; a quadratic rule would take minutes. The limit is wide
/// because test machines are shared.
#[test]
fn a_megabyte_is_quick() {
    const LIMIT_SECONDS: f64 = 5.0;
    for scrap in SCRAPS.iter().chain(&[
        "1,", "1,000", "a.", "A.", "1-", "1.", "1/", "1:", "a/", "((", "a@", "a b ", "5 km ", "12:", "$1-",
        "Dr. ", "555-", "' ", "\"'", "e\u{301}", "1 ", "May 5 ", "Ab ", "x.y", "-1", "$$", "#a", "³", "/1",
        "A B ",
    ]) {
        let text = scrap.repeat(1_000_000 / scrap.len());
        let start = std::time::Instant::now();
        let read = read_aloud(&text);
        let _ = fit_alphabet(&read, plain);
        let seconds = start.elapsed().as_secs_f64();
        assert!(seconds < LIMIT_SECONDS, "{scrap:?} took {seconds} s");
    }
}

/// The reader has some thousand tokens in memory at a time; the boundaries must not affect the result.
#[test]
fn a_long_text_is_read_as_its_sentences_are() {
    let sentence = "Dr. Smith paid $3.50 at 10:45 on 5 May 2024 (see www.example.com/a-b), \
                    \"World War II\" -- 5 km/h; call 555-0123, or St. John's Ave. in NY 10017.\n\n";
    for lead in 0..7 {
        let start = "word ".repeat(lead);
        let text = start.clone() + &sentence.repeat(300);
        assert_eq!(read_aloud(&text), start + &read_aloud(sentence).repeat(300));
    }
    // Runs of signs are consumed as a whole, however long.
    assert_eq!(read_aloud(&format!("a\n{}\nb", "=".repeat(10_001))), "a\n\nb");
}

/// Soft hyphens, joiners, zero-width spaces and variation selectors come with text from web pages and
/// messengers.
#[test]
fn invisible_characters_are_dropped() {
    let known = |c: char| c.is_ascii_alphabetic() || " .,?!'-;:\"".contains(c);
    let text =
        "\u{feff}A so\u{ad}ft, zero\u{200b}-width heart \u{2764}\u{fe0f} and a fami\u{200d}ly\u{2060}.";
    let pieces = speakable(text, &Rules::default(), 168, known).expect("nothing is unknown");
    assert_eq!(pieces, ["A soft, zero-width heart and a family."]);
}
