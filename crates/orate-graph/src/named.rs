//! Enums whose variants have names in options, plans and messages.

/// Declares an enum and the name of each variant. With `: "what"` after its own name it is read from text,
/// and the error says what there is none of.
macro_rules! named {
    ($(#[$meta:meta])* pub enum $type:ident $(: $what:literal)? {
        $($(#[$own:meta])* $variant:ident = $name:literal,)+
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $type {
            $($(#[$own])* $variant,)+
        }

        impl $type {
            /// All of them, in the order of declaration.
            pub const ALL: [$type; [$($name),+].len()] = [$($type::$variant),+];

            /// Name in options, plans and messages.
            pub fn name(self) -> &'static str {
                match self {
                    $($type::$variant => $name,)+
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }

        $(impl std::str::FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> std::result::Result<Self, String> {
                let known = Self::ALL.map(Self::name).join(", ");
                let found = Self::ALL.into_iter().find(|one| one.name() == text);
                let what = $what;
                found.ok_or_else(|| format!("there is no {what} `{text}`; choose one of {known}"))
            }
        })?
    };
}
