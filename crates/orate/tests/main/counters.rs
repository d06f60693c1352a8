//! How often an utterance asks something of the device. A number that grows here is work on every sentence.

use crate::common::raw;
use orate::Engine;

#[test]
fn submissions_and_read_backs_of_a_sentence() {
    let engine = Engine::new().expect("the built-in voice opens");
    for steps in [1usize, 5] {
        let options = raw().set("steps", steps);
        let chunks: Vec<_> = engine
            .stream("One sentence.\n\nAnother one.", &options)
            .expect("the text is fine")
            .collect::<Result<_, _>>()
            .expect("speaks");
        assert_eq!(chunks.len(), 2);
        for chunk in &chunks {
            // Duration, text, noise with what all steps share, each step, vocoder.
            assert_eq!(chunk.counters.submissions, steps as u64 + 4);
            // The duration decides the latent length; the audio is the result.
            assert_eq!(chunk.counters.read_backs, 2);
            let audio = 4 * chunk.samples.len() as u64;
            assert!(chunk.counters.bytes_down < audio + 4 * 1800 + 8, "only seconds and samples come down");
            assert!(chunk.counters.bytes_up < 64 * 1024, "only ids, styles and times go up");
        }
    }
}
