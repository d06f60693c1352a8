//! Units of measure.

/// A unit as written and as said.
#[derive(Debug)]
pub(super) struct Unit {
    pub symbol: &'static str,
    pub one: &'static str,
    pub many: &'static str,
    /// Whether a space is allowed between number and unit. Not for symbols that are also words or letters: "5
    /// in the morning", "5 A students".
    pub spaced: bool,
    /// Whether it is also written with a full stop: "5 ft.".
    pub dot: bool,
}

const fn unit(symbol: &'static str, one: &'static str, many: &'static str) -> Unit {
    Unit { symbol, one, many, spaced: true, dot: false }
}

const fn dotted(symbol: &'static str, one: &'static str, many: &'static str) -> Unit {
    Unit { symbol, one, many, spaced: true, dot: true }
}

const fn attached(symbol: &'static str, one: &'static str, many: &'static str) -> Unit {
    Unit { symbol, one, many, spaced: false, dot: false }
}

const UNITS: &[Unit] = &[
    // Length.
    unit("km", "kilometer", "kilometers"),
    unit("m", "meter", "meters"),
    unit("dm", "decimeter", "decimeters"),
    unit("cm", "centimeter", "centimeters"),
    unit("mm", "millimeter", "millimeters"),
    unit("µm", "micrometer", "micrometers"),
    unit("μm", "micrometer", "micrometers"),
    unit("nm", "nanometer", "nanometers"),
    dotted("mi", "mile", "miles"),
    dotted("yd", "yard", "yards"),
    dotted("yds", "yard", "yards"),
    dotted("ft", "foot", "feet"),
    Unit { symbol: "in", one: "inch", many: "inches", spaced: false, dot: true },
    unit("in.", "inch", "inches"),
    // Area and volume.
    unit("m²", "square meter", "square meters"),
    unit("m2", "square meter", "square meters"),
    unit("km²", "square kilometer", "square kilometers"),
    unit("km2", "square kilometer", "square kilometers"),
    unit("cm²", "square centimeter", "square centimeters"),
    unit("cm2", "square centimeter", "square centimeters"),
    unit("ft²", "square foot", "square feet"),
    unit("sq ft", "square foot", "square feet"),
    dotted("sq. ft", "square foot", "square feet"),
    unit("m³", "cubic meter", "cubic meters"),
    unit("m3", "cubic meter", "cubic meters"),
    unit("cm³", "cubic centimeter", "cubic centimeters"),
    unit("cm3", "cubic centimeter", "cubic centimeters"),
    unit("ha", "hectare", "hectares"),
    unit("l", "liter", "liters"),
    unit("L", "liter", "liters"),
    unit("dl", "deciliter", "deciliters"),
    unit("cl", "centiliter", "centiliters"),
    unit("ml", "milliliter", "milliliters"),
    unit("mL", "milliliter", "milliliters"),
    dotted("gal", "gallon", "gallons"),
    dotted("qt", "quart", "quarts"),
    dotted("pt", "pint", "pints"),
    unit("fl oz", "fluid ounce", "fluid ounces"),
    dotted("fl. oz", "fluid ounce", "fluid ounces"),
    dotted("tsp", "teaspoon", "teaspoons"),
    dotted("tbsp", "tablespoon", "tablespoons"),
    // Mass.
    unit("kg", "kilogram", "kilograms"),
    unit("g", "gram", "grams"),
    unit("mg", "milligram", "milligrams"),
    unit("µg", "microgram", "micrograms"),
    unit("μg", "microgram", "micrograms"),
    dotted("lb", "pound", "pounds"),
    dotted("lbs", "pound", "pounds"),
    dotted("oz", "ounce", "ounces"),
    // Speed.
    unit("km/h", "kilometer per hour", "kilometers per hour"),
    unit("kmh", "kilometer per hour", "kilometers per hour"),
    unit("kph", "kilometer per hour", "kilometers per hour"),
    unit("mph", "mile per hour", "miles per hour"),
    unit("mpg", "mile per gallon", "miles per gallon"),
    unit("m/s", "meter per second", "meters per second"),
    unit("m/s²", "meter per second squared", "meters per second squared"),
    unit("km/s", "kilometer per second", "kilometers per second"),
    unit("rpm", "revolution per minute", "revolutions per minute"),
    unit("bpm", "beat per minute", "beats per minute"),
    unit("fps", "frame per second", "frames per second"),
    // Time.
    unit("s", "second", "seconds"),
    unit("ms", "millisecond", "milliseconds"),
    unit("µs", "microsecond", "microseconds"),
    unit("μs", "microsecond", "microseconds"),
    unit("ns", "nanosecond", "nanoseconds"),
    dotted("sec", "second", "seconds"),
    dotted("secs", "second", "seconds"),
    dotted("min", "minute", "minutes"),
    dotted("mins", "minute", "minutes"),
    unit("h", "hour", "hours"),
    dotted("hr", "hour", "hours"),
    dotted("hrs", "hour", "hours"),
    dotted("yr", "year", "years"),
    dotted("yrs", "year", "years"),
    // Temperature and angle.
    unit("°C", "degree Celsius", "degrees Celsius"),
    unit("℃", "degree Celsius", "degrees Celsius"),
    unit("°F", "degree Fahrenheit", "degrees Fahrenheit"),
    unit("℉", "degree Fahrenheit", "degrees Fahrenheit"),
    unit("°", "degree", "degrees"),
    // Electricity, energy, power, pressure, sound.
    unit("Hz", "hertz", "hertz"),
    unit("kHz", "kilohertz", "kilohertz"),
    unit("MHz", "megahertz", "megahertz"),
    unit("GHz", "gigahertz", "gigahertz"),
    unit("THz", "terahertz", "terahertz"),
    unit("W", "watt", "watts"),
    unit("mW", "milliwatt", "milliwatts"),
    unit("kW", "kilowatt", "kilowatts"),
    unit("MW", "megawatt", "megawatts"),
    unit("GW", "gigawatt", "gigawatts"),
    unit("Wh", "watt hour", "watt hours"),
    unit("kWh", "kilowatt hour", "kilowatt hours"),
    unit("MWh", "megawatt hour", "megawatt hours"),
    unit("V", "volt", "volts"),
    unit("mV", "millivolt", "millivolts"),
    unit("kV", "kilovolt", "kilovolts"),
    attached("A", "amp", "amps"),
    unit("mA", "milliamp", "milliamps"),
    unit("mAh", "milliamp hour", "milliamp hours"),
    unit("Ω", "ohm", "ohms"),
    unit("Ω", "ohm", "ohms"),
    unit("kΩ", "kilohm", "kilohms"),
    unit("J", "joule", "joules"),
    unit("kJ", "kilojoule", "kilojoules"),
    unit("MJ", "megajoule", "megajoules"),
    unit("cal", "calorie", "calories"),
    unit("kcal", "kilocalorie", "kilocalories"),
    unit("hp", "horsepower", "horsepower"),
    unit("Pa", "pascal", "pascals"),
    unit("hPa", "hectopascal", "hectopascals"),
    unit("kPa", "kilopascal", "kilopascals"),
    unit("MPa", "megapascal", "megapascals"),
    unit("psi", "pound per square inch", "pounds per square inch"),
    unit("dB", "decibel", "decibels"),
    // Data.
    unit("kB", "kilobyte", "kilobytes"),
    unit("KB", "kilobyte", "kilobytes"),
    unit("MB", "megabyte", "megabytes"),
    unit("GB", "gigabyte", "gigabytes"),
    unit("TB", "terabyte", "terabytes"),
    unit("PB", "petabyte", "petabytes"),
    unit("KiB", "kibibyte", "kibibytes"),
    unit("MiB", "mebibyte", "mebibytes"),
    unit("GiB", "gibibyte", "gibibytes"),
    unit("TiB", "tebibyte", "tebibytes"),
    unit("MB/s", "megabyte per second", "megabytes per second"),
    unit("GB/s", "gigabyte per second", "gigabytes per second"),
    unit("kbps", "kilobit per second", "kilobits per second"),
    unit("Kbps", "kilobit per second", "kilobits per second"),
    unit("Mbps", "megabit per second", "megabits per second"),
    unit("Gbps", "gigabit per second", "gigabits per second"),
    unit("kbit/s", "kilobit per second", "kilobits per second"),
    unit("Mbit/s", "megabit per second", "megabits per second"),
    unit("px", "pixel", "pixels"),
    unit("dpi", "dot per inch", "dots per inch"),
    // Fractions.
    unit("%", "percent", "percent"),
    unit("‰", "per mille", "per mille"),
    unit("ppm", "part per million", "parts per million"),
    unit("bps", "bit per second", "bits per second"),
    // Abbreviated large numbers.
    attached("M", "million", "million"),
    attached("mn", "million", "million"),
    unit("bn", "billion", "billion"),
    unit("tn", "trillion", "trillion"),
    attached("x", "times", "times"),
    attached("p", "P", "P"),
    // Currency codes.
    unit("USD", "US dollar", "US dollars"),
    unit("EUR", "euro", "euros"),
    unit("GBP", "pound", "pounds"),
    unit("JPY", "yen", "yen"),
    unit("CHF", "Swiss franc", "Swiss francs"),
    unit("€", "euro", "euros"),
    unit("£", "pound", "pounds"),
    unit("₹", "rupee", "rupees"),
    attached("$", "dollar", "dollars"),
    unit("¢", "cent", "cents"),
];

/// The longest unit that `text` begins with, unless it is the start of a longer word.
pub(super) fn leading_unit(text: &str, spaced: bool) -> Option<&'static Unit> {
    let first = *text.as_bytes().first()?;
    UNITS
        .iter()
        .filter(|unit| unit.symbol.as_bytes()[0] == first && (unit.spaced || !spaced))
        .filter(|unit| {
            text.strip_prefix(unit.symbol).is_some_and(|rest| {
                // Signs need no word boundary: "5%of".
                let sign = !unit.symbol.ends_with(char::is_alphanumeric);
                sign || !rest.starts_with(char::is_alphanumeric)
            })
        })
        .max_by_key(|unit| unit.symbol.len())
}

/// The unit with exactly this symbol.
pub(super) fn find(symbol: &str) -> Option<&'static Unit> {
    UNITS.iter().find(|unit| unit.symbol == symbol)
}

/// A currency written before the amount.
#[derive(Debug)]
pub(super) struct Currency {
    pub one: &'static str,
    pub many: &'static str,
    /// The hundredth, singular and plural; empty if not in use.
    pub cent: (&'static str, &'static str),
}

const CENT: (&str, &str) = ("cent", "cents");

/// The currency of a sign, with the letters before it (`US`, `A`, or none).
pub(super) fn currency(prefix: &str, sign: char) -> Option<Currency> {
    let (one, many, cent) = match (prefix, sign) {
        ("", '$') => ("dollar", "dollars", CENT),
        ("US", '$') => ("US dollar", "US dollars", CENT),
        ("A" | "AU", '$') => ("Australian dollar", "Australian dollars", CENT),
        ("C" | "CA", '$') => ("Canadian dollar", "Canadian dollars", CENT),
        ("HK", '$') => ("Hong Kong dollar", "Hong Kong dollars", CENT),
        ("NZ", '$') => ("New Zealand dollar", "New Zealand dollars", CENT),
        ("S", '$') => ("Singapore dollar", "Singapore dollars", CENT),
        ("R", '$') => ("real", "reais", ("centavo", "centavos")),
        ("", '£') => ("pound", "pounds", ("penny", "pence")),
        ("", '€') => ("euro", "euros", CENT),
        ("", '¥') => ("yen", "yen", ("", "")),
        ("", '₹') => ("rupee", "rupees", ("paisa", "paise")),
        ("", '₩') => ("won", "won", ("", "")),
        ("", '₽') => ("ruble", "rubles", ("kopeck", "kopecks")),
        ("", '₺') => ("lira", "lira", ("kurush", "kurush")),
        ("", '₴') => ("hryvnia", "hryvnias", ("kopiyka", "kopiykas")),
        ("", '₿') => ("bitcoin", "bitcoins", ("", "")),
        _ => return None,
    };
    Some(Currency { one, many, cent })
}
