//! Players: programs of the system that make sound heard.

use crate::ahead::LOOK;
use crate::audio_sink::Format;
use crate::failure::UsageError;
use anyhow::Context as _;
use std::env;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

/// A command that plays.
const PLAYER: &str = "ORATE_PLAYER";
/// Names the file for a player that cannot be given a path as an argument.
const SOUND: &str = "ORATE_SOUND";

/// How a player gets sound.
#[derive(Clone, Copy, Debug, PartialEq)]
enum By {
    /// 16-bit samples on standard input; the rate is in the arguments.
    Samples,
    /// WAV on standard input.
    Wav,
    /// A complete WAV file, the last argument.
    File,
    /// The same, named by [`SOUND`].
    FileInVariable,
}

/// Players in the order in which they are tried. `RATE` becomes the sample rate in Hz.
const KNOWN: [(&str, &[&str], By); 7] = [
    ("paplay", &["--raw", "--format=s16le", "--channels=1", "--rate=RATE"], By::Samples),
    ("aplay", &["-q", "-t", "raw", "-f", "S16_LE", "-c", "1", "-r", "RATE", "-"], By::Samples),
    ("ffplay", &["-nodisp", "-autoexit", "-loglevel", "error", "-i", "-"], By::Wav),
    ("mpv", &["--no-terminal", "--no-video", "-"], By::Wav),
    ("play", &["-q", "-t", "raw", "-e", "signed", "-b", "16", "-c", "1", "-r", "RATE", "-"], By::Samples),
    // Those of macOS and Windows do not read pipes.
    ("afplay", &[], By::File),
    (
        "powershell",
        &["-NoProfile", "-Command", "(New-Object Media.SoundPlayer $env:ORATE_SOUND).PlaySync()"],
        By::FileInVariable,
    ),
];

/// A player that was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Player {
    program: PathBuf,
    args: Vec<String>,
    by: By,
}

impl Player {
    /// The command of [`PLAYER`], or else the first of the known players in the search path.
    pub fn find() -> anyhow::Result<Player> {
        let command = env::var(PLAYER).unwrap_or_default();
        Ok(Self::choose(&command, &env::var_os("PATH").unwrap_or_default())?)
    }

    /// A program and its arguments, separated by spaces; `None` if there are only spaces.
    pub fn of_command(command: &str) -> Option<Player> {
        let mut words = command.split_whitespace().map(str::to_owned);
        Some(Player { program: words.next()?.into(), args: words.collect(), by: By::Wav })
    }

    fn choose(command: &str, search_path: &std::ffi::OsStr) -> Result<Player, UsageError> {
        if let Some(player) = Self::of_command(command) {
            return Ok(player);
        }
        let folders: Vec<PathBuf> = env::split_paths(search_path).collect();
        let found = |name: &str| {
            let file = format!("{name}{}", env::consts::EXE_SUFFIX);
            folders.iter().map(|folder| folder.join(&file)).find(|path| is_program(path))
        };
        let player = KNOWN.iter().find_map(|(name, args, by)| {
            let args = args.iter().map(|arg| (*arg).to_owned()).collect();
            Some(Player { program: found(name)?, args, by: *by })
        });
        player.ok_or_else(|| {
            let [first @ .., last] = ["paplay", "aplay", "ffplay", "mpv", "play (of SoX)"];
            let names = first.join(", ");
            UsageError(format!(
                "--play: no player is installed; install {names} or {last}, set {PLAYER} to a command that \
                 reads WAV from standard input, or write a file with -o"
            ))
        })
    }

    /// Format of the sound that it gets.
    pub fn format(&self) -> Format {
        if self.by == By::Samples { Format::Raw } else { Format::Wav16 }
    }

    /// Whether it plays complete files only.
    pub fn needs_file(&self) -> bool {
        matches!(self.by, By::File | By::FileInVariable)
    }

    /// Name of the program.
    pub fn name(&self) -> String {
        self.program.file_stem().unwrap_or(self.program.as_os_str()).to_string_lossy().into_owned()
    }

    /// The command, for sound of this rate in Hz.
    fn command(&self, sample_rate: u32) -> Command {
        let mut command = Command::new(&self.program);
        match self.by {
            By::Samples => {
                command.args(self.args.iter().map(|arg| arg.replace("RATE", &sample_rate.to_string())))
            }
            _ => command.args(&self.args),
        };
        command.stdout(Stdio::null());
        command
    }

    /// Starts it for sound of this rate, in Hz, that it reads from a pipe.
    pub fn start(&self, sample_rate: u32) -> anyhow::Result<(Playing, ChildStdin)> {
        let mut child = self.spawn(self.command(sample_rate).stdin(Stdio::piped()))?;
        let stdin = child.stdin.take().expect("it has a pipe");
        Ok((Playing { name: self.name(), child }, stdin))
    }

    /// Plays a file, and waits for the end, or until `stops` says to stop it.
    pub fn play(&self, file: &Path, stops: impl Fn() -> bool) -> anyhow::Result<()> {
        let mut command = self.command(0);
        match self.by {
            By::FileInVariable => command.env(SOUND, file),
            _ => command.arg(file),
        };
        let child = self.spawn(command.stdin(Stdio::null()))?;
        Playing { name: self.name(), child }.end(stops)
    }

    fn spawn(&self, command: &mut Command) -> anyhow::Result<Child> {
        let program = self.program.display();
        command.spawn().with_context(|| format!("--play: cannot start `{program}`. Check {PLAYER} and PATH"))
    }
}

/// A player that is at work. Dropping it stops it.
pub struct Playing {
    name: String,
    child: Child,
}

impl Playing {
    /// Waits until all is played, or `stops` says to stop it.
    ///
    /// # Errors
    /// It failed.
    pub fn end(mut self, stops: impl Fn() -> bool) -> anyhow::Result<()> {
        let status = loop {
            if let Some(status) =
                self.child.try_wait().with_context(|| format!("--play: lost `{}`", self.name))?
            {
                break status;
            }
            if stops() {
                return Ok(());
            }
            std::thread::sleep(LOOK);
        };
        anyhow::ensure!(
            status.success(),
            "--play: `{}` failed ({status}); its message may be above. Set {PLAYER} to another command that \
             reads WAV from standard input, or write a file with -o",
            self.name
        );
        Ok(())
    }

    /// What a failure to write to it means: it failed, or its user has ended it.
    pub fn lost(self, e: io::Error) -> anyhow::Error {
        match e.kind() {
            io::ErrorKind::BrokenPipe => self.end(|| false).err().unwrap_or_else(|| e.into()),
            _ => anyhow::Error::from(e).context(format!("--play: cannot write to `{}`", self.name)),
        }
    }
}

impl Drop for Playing {
    fn drop(&mut self) {
        // One that has ended needs no signal.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(unix)]
fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

#[cfg(not(unix))]
fn is_program(path: &Path) -> bool {
    path.is_file()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with programs of these names, and a file that is no program.
    #[cfg(unix)]
    fn folder(names: &[&str]) -> tempfile::TempDir {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("paplay"), "").expect("writable");
        for name in names {
            let path = folder.path().join(name);
            std::fs::write(&path, "").expect("writable");
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("ours");
        }
        folder
    }

    #[cfg(unix)]
    #[test]
    fn the_first_known_player_is_found() {
        let [none, some] = [folder(&[]), folder(&["mpv", "ffplay", "afplay"])];
        let path = env::join_paths([none.path(), some.path()]).expect("a path");
        let player = Player::choose(" ", &path).expect("one is there");
        assert_eq!(
            (player.name(), player.format(), player.needs_file()),
            ("ffplay".into(), Format::Wav16, false)
        );
        assert_eq!(player.program, some.path().join("ffplay"));
        let e = Player::choose("", none.path().as_os_str()).expect_err("none").to_string();
        assert!(e.starts_with("--play: no player") && e.contains("ORATE_PLAYER") && e.contains("-o"), "{e}");
    }

    #[cfg(unix)]
    #[test]
    fn samples_come_with_their_rate() {
        let folder = folder(&["aplay", "afplay"]);
        let player = Player::choose("", folder.path().as_os_str()).expect("one is there");
        let command = player.command(44_100);
        let args: Vec<_> = command.get_args().map(|arg| arg.to_string_lossy().into_owned()).collect();
        assert_eq!(args.join(" "), "-q -t raw -f S16_LE -c 1 -r 44100 -");
        assert_eq!(player.format(), Format::Raw);
    }

    #[test]
    fn a_command_of_the_user_comes_first() {
        let player = Player::choose("  my-player --loud  -", "/nowhere".as_ref()).expect("a command");
        assert_eq!((player.name(), player.args.join(" ")), ("my-player".into(), "--loud -".into()));
        assert_eq!(player.format(), Format::Wav16);
        let Err(e) = player.start(8000) else { panic!("there is no such program") };
        assert!(format!("{e:#}").contains("`my-player`"), "{e:#}");
    }
}
