//! Work of several threads, done in one pass.
//!
//! There is no thread for this. A caller that finds nobody at work leads: it takes the work of those that
//! wait as well, does it all, and one of those that came meanwhile leads next. So work that is alone waits
//! for nobody, unless more was announced or it has time. Several may lead side by side. A leader may also
//! begin with what has to be done for each work alone, and take those that came meanwhile ([`Open`]).

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Work `J` that waits, and answers `A`.
pub(crate) struct Coalescer<J, A> {
    state: Mutex<State<J, A>>,
    /// Somebody has come, or was answered.
    changed: Condvar,
    /// How long a leader waits for work that was announced.
    wait: Duration,
    /// Maximum leaders at a time.
    leaders: usize,
    /// Leaders may be more where no more than this is being done.
    apart: usize,
}

struct State<J, A> {
    coming: usize,
    /// Those that wait and have no time.
    hurried: usize,
    waiting: Vec<(u64, Patience, J)>,
    /// Work that is being done.
    taken: Vec<u64>,
    answers: Vec<(u64, A)>,
    leaders: usize,
    /// Leaders that will take what comes.
    open: usize,
    next_id: u64,
}

/// How long work may wait for more of its kind, if there is less than `enough`, what is being done included.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Patience {
    pub time: Duration,
    pub enough: usize,
}

impl Patience {
    /// Work that is to be done now.
    pub const NONE: Patience = Patience { time: Duration::ZERO, enough: 0 };
}

/// Rows of a run for this many callers, so that few plans are needed: a power of two, or three times one.
pub(crate) fn padded_rows(callers: usize) -> usize {
    let power = callers.next_power_of_two();
    if callers <= power / 4 * 3 { power / 4 * 3 } else { power }
}

/// Announced work: leaders wait for it a moment.
pub(crate) struct Coming<'a, J, A>(&'a Coalescer<J, A>);

impl<J, A> Drop for Coming<'_, J, A> {
    fn drop(&mut self) {
        self.0.lock().coming -= 1;
        self.0.changed.notify_all();
    }
}

/// A leader, and the work that it does. Lets somebody else lead at the end, also when the leader panics.
struct Leading<'a, J, A> {
    coalescer: &'a Coalescer<J, A>,
    ids: Vec<u64>,
    /// Whether those that come wait for this leader to take them.
    is_open: bool,
}

impl<J, A> Leading<'_, J, A> {
    fn close(&mut self, state: &mut State<J, A>) {
        state.open -= usize::from(std::mem::take(&mut self.is_open));
    }
}

impl<J, A> Drop for Leading<'_, J, A> {
    fn drop(&mut self) {
        let mut state = self.coalescer.lock();
        self.close(&mut state);
        state.leaders -= 1;
        state.taken.retain(|id| !self.ids.contains(id));
        drop(state);
        self.coalescer.changed.notify_all();
    }
}

/// A leader that has begun, and takes more: see [`Coalescer::call_open`].
pub(crate) struct Open<'l, 'a, J, A> {
    leading: &'l mut Leading<'a, J, A>,
    most: usize,
}

impl<J, A> Open<'_, '_, J, A> {
    /// Work that has come since, up to the limit. Once there is none, others may lead. If all work is that of
    /// this leader and one more, that one leads itself: two runs side by side take less time than one of both
    /// that has to wait for the second.
    pub fn take(&mut self) -> Vec<J> {
        let Open { leading, most } = self;
        let coalescer = leading.coalescer;
        let mut state = coalescer.lock();
        let is_pair = coalescer.apart > 1 && state.taken.len() == 1 && state.waiting.len() == 1;
        let room = if is_pair { 0 } else { most.saturating_sub(leading.ids.len()) };
        let (ids, jobs): (Vec<u64>, Vec<J>) = state.take(room, |_, _| true).into_iter().unzip();
        state.taken.extend(&ids);
        leading.ids.extend(&ids);
        if jobs.is_empty() || leading.ids.len() >= *most {
            leading.close(&mut state);
            drop(state);
            coalescer.changed.notify_all();
        }
        jobs
    }
}

impl<J, A> Coalescer<J, A> {
    /// Nothing to do. A leader waits for announced work for `wait`.
    pub fn new(wait: Duration) -> Coalescer<J, A> {
        Self::with_leaders(wait, 1, 1)
    }

    /// The same for this many leaders at a time, and for up to `apart` while no more than that is being done.
    pub fn with_leaders(wait: Duration, leaders: usize, apart: usize) -> Coalescer<J, A> {
        let (waiting, taken, answers) = (vec![], vec![], vec![]);
        let state = State { coming: 0, hurried: 0, waiting, taken, answers, leaders: 0, open: 0, next_id: 0 };
        Coalescer { state: Mutex::new(state), changed: Condvar::new(), wait, leaders, apart }
    }

    fn lock(&self) -> MutexGuard<'_, State<J, A>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Announces a call of [`Coalescer::call`].
    pub fn coming(&self) -> Coming<'_, J, A> {
        self.lock().coming += 1;
        Coming(self)
    }

    /// Has a job done, by `run` in this thread or by another caller. `run` gets the job that has waited
    /// longest and up to `most` in all that are `alike`, and returns their answers in the same order. `None`
    /// if another thread panicked while it did the job.
    pub fn call(
        &self,
        coming: Option<Coming<'_, J, A>>,
        (job, patience): (J, Patience),
        (most, alike): (usize, impl Fn(&J, &J) -> bool),
        run: impl FnMut(Vec<J>) -> Vec<A>,
    ) -> Option<A> {
        self.call_meanwhile(coming, (job, patience), (most, alike), run, || {})
    }

    /// As [`Coalescer::call`]; a caller that has to wait does something else first.
    pub fn call_meanwhile(
        &self,
        coming: Option<Coming<'_, J, A>>,
        (job, patience): (J, Patience),
        (most, alike): (usize, impl Fn(&J, &J) -> bool),
        mut run: impl FnMut(Vec<J>) -> Vec<A>,
        meanwhile: impl FnOnce(),
    ) -> Option<A> {
        self.lead_or_wait(coming, (job, patience), (most, alike), (false, meanwhile), |jobs, _| run(jobs))
    }

    /// As [`Coalescer::call`], where `run` can take more jobs while it is at work, and those that come wait
    /// for it until there were none to take. Their answers follow those of the first.
    pub fn call_open(
        &self,
        job: J,
        most: usize,
        run: impl FnMut(Vec<J>, Open<'_, '_, J, A>) -> Vec<A>,
    ) -> Option<A> {
        self.lead_or_wait(None, (job, Patience::NONE), (most, |_, _| true), (true, || {}), run)
    }

    fn lead_or_wait(
        &self,
        coming: Option<Coming<'_, J, A>>,
        (job, patience): (J, Patience),
        (most, alike): (usize, impl Fn(&J, &J) -> bool),
        (is_open, meanwhile): (bool, impl FnOnce()),
        mut run: impl FnMut(Vec<J>, Open<'_, '_, J, A>) -> Vec<A>,
    ) -> Option<A> {
        let mut meanwhile = Some(meanwhile);
        let mut state = self.lock();
        let id = state.next_id;
        state.next_id += 1;
        state.waiting.push((id, patience, job));
        state.hurried += usize::from(patience.time.is_zero());
        drop(state);
        self.changed.notify_all();
        drop(coming);
        state = self.lock();
        loop {
            if let Some(i) = state.answers.iter().position(|(of, _)| *of == id) {
                return Some(state.answers.swap_remove(i).1);
            }
            if !state.may_lead(self) || state.taken.contains(&id) {
                if let Some(meanwhile) = meanwhile.take() {
                    drop(state);
                    meanwhile();
                    state = self.lock();
                    continue;
                }
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            if !state.waiting.iter().any(|(of, ..)| *of == id) {
                return None;
            }
            state.leaders += 1;
            let more = |state: &mut State<J, A>| state.coming > 0 && state.waiting.len() < most;
            let waited = self.changed.wait_timeout_while(state, self.wait, more);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            let few = |state: &mut State<J, A>| {
                let enough = patience.enough.saturating_sub(state.taken.len()).min(most);
                state.hurried == 0 && state.waiting.len() < enough
            };
            let waited = self.changed.wait_timeout_while(state, patience.time, few);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            let (ids, jobs): (Vec<u64>, Vec<J>) = state.take(most, &alike).into_iter().unzip();
            state.taken.extend(&ids);
            let is_open = is_open && (1..most).contains(&jobs.len());
            state.open += usize::from(is_open);
            drop(state);
            let mut leading = Leading { coalescer: self, ids, is_open };
            // Another one may lead what is left.
            self.changed.notify_all();
            // Another leader may have taken all.
            let open = Open { leading: &mut leading, most };
            let answers = if jobs.is_empty() { vec![] } else { run(jobs, open) };
            self.lock().answers.extend(leading.ids.iter().copied().zip(answers));
            drop(leading);
            state = self.lock();
        }
    }
}

impl<J, A> State<J, A> {
    /// Whether there is room for another leader, and none that takes what waits.
    fn may_lead(&self, c: &Coalescer<J, A>) -> bool {
        let few = self.leaders < c.apart && self.taken.len() < c.apart;
        self.open == 0 && (self.leaders < c.leaders || few)
    }

    /// The job that has waited longest, and others like it.
    fn take(&mut self, most: usize, alike: impl Fn(&J, &J) -> bool) -> Vec<(u64, J)> {
        let mut group: Vec<(u64, J)> = vec![];
        for (id, patience, job) in std::mem::take(&mut self.waiting) {
            let fits = group.first().is_none_or(|(_, first)| alike(first, &job)) && group.len() < most;
            if fits {
                self.hurried -= usize::from(patience.time.is_zero());
                group.push((id, job));
            } else {
                self.waiting.push((id, patience, job));
            }
        }
        group
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const WAIT: Duration = Duration::from_millis(5);
    const ANY: fn(&u32, &u32) -> bool = |_, _| true;

    /// Jobs that arrive while somebody works are done together, up to the limit and by kind.
    #[test]
    fn what_waits_is_done_together() {
        let (coalescer, runs) = (Coalescer::<u32, u32>::new(WAIT), AtomicUsize::new(0));
        let call = |x: u32| {
            let alike = |a: &u32, b: &u32| a % 2 == b % 2;
            coalescer.call(None, (x, Patience::NONE), (3, alike), |jobs: Vec<u32>| {
                assert!(jobs.len() <= 3 && jobs.iter().all(|x| x % 2 == jobs[0] % 2), "{jobs:?}");
                runs.fetch_add(1, Ordering::Relaxed);
                // The first waits until all others do.
                while jobs == [100] && coalescer.lock().waiting.len() < 8 {
                    std::thread::yield_now();
                }
                jobs.into_iter().map(|x| x * 10).collect()
            })
        };
        std::thread::scope(|threads| {
            threads.spawn(|| assert_eq!(call(100), Some(1000)));
            while coalescer.lock().leaders == 0 {
                std::thread::yield_now();
            }
            let call = &call;
            (0..8).for_each(|i| drop(threads.spawn(move || assert_eq!(call(i), Some(10 * i)))));
        });
        // Four of each kind: three and one.
        assert_eq!(runs.into_inner(), 1 + 4);
    }

    /// Two jobs are done side by side; the third waits for one of them.
    #[test]
    fn several_lead_side_by_side() {
        for (leaders, apart) in [(2, 0), (1, 2)] {
            side_by_side(&Coalescer::with_leaders(WAIT, leaders, apart));
        }
    }

    fn side_by_side(coalescer: &Coalescer<u32, usize>) {
        let both = std::sync::Barrier::new(2);
        let call = |x: u32| {
            coalescer.call(None, (x, Patience::NONE), (9, ANY), |jobs: Vec<u32>| {
                if jobs[0] < 2 {
                    both.wait();
                }
                vec![jobs.len(); jobs.len()]
            })
        };
        std::thread::scope(|threads| {
            let call = &call;
            let first = threads.spawn(move || call(0));
            while coalescer.lock().taken.is_empty() {
                std::thread::yield_now();
            }
            assert_eq!(call(1), Some(1));
            assert_eq!(first.join().expect("no panic"), Some(1));
            assert_eq!(call(2), Some(1));
        });
        let state = coalescer.lock();
        assert_eq!((state.leaders, state.taken.len(), state.answers.len()), (0, 0, 0));
    }

    /// Work that comes while a leader is open waits for it, although another might lead.
    #[test]
    fn an_open_leader_takes_what_comes() {
        let coalescer = Coalescer::<u32, usize>::with_leaders(WAIT, 2, 2);
        let call = |x: u32| {
            coalescer.call_open(x, 3, |mut jobs, mut open| {
                assert_eq!(jobs, [0]);
                while coalescer.lock().waiting.len() < 2 {
                    std::thread::yield_now();
                }
                while jobs.len() < 3 {
                    jobs.extend(open.take());
                }
                assert_eq!(coalescer.lock().open, 0, "it has as many as it may");
                vec![jobs.len(); jobs.len()]
            })
        };
        std::thread::scope(|threads| {
            let call = &call;
            threads.spawn(move || assert_eq!(call(0), Some(3)));
            while coalescer.lock().open == 0 {
                std::thread::yield_now();
            }
            (1..3).for_each(|i| drop(threads.spawn(move || assert_eq!(call(i), Some(3)))));
        });
        let closed = coalescer.call_open(0, 3, |jobs, mut open| {
            assert!(open.take().is_empty());
            vec![jobs.len() + coalescer.lock().open]
        });
        assert_eq!(closed, Some(1), "with nothing to take, others may lead");
        let state = coalescer.lock();
        assert_eq!((state.leaders, state.open, state.taken.len()), (0, 0, 0));
    }

    /// The second of two is not taken along, although it waits.
    #[test]
    fn two_lead_side_by_side_also_if_the_first_is_open() {
        let (coalescer, both) =
            (Coalescer::<u32, usize>::with_leaders(WAIT, 2, 2), std::sync::Barrier::new(2));
        let call = |x: u32| {
            coalescer.call_open(x, 3, |jobs, mut open| {
                while jobs == [0] && coalescer.lock().waiting.is_empty() {
                    std::thread::yield_now();
                }
                assert!(open.take().is_empty());
                both.wait();
                vec![jobs.len()]
            })
        };
        std::thread::scope(|threads| {
            let call = &call;
            threads.spawn(move || assert_eq!(call(0), Some(1)));
            while coalescer.lock().open == 0 {
                std::thread::yield_now();
            }
            assert_eq!(call(1), Some(1));
        });
    }

    #[test]
    fn work_on_its_way_is_waited_for() {
        let coalescer = Coalescer::<u32, usize>::new(WAIT);
        let call = |coming| {
            coalescer.call(Some(coming), (1, Patience::NONE), (9, ANY), |jobs| vec![jobs.len(); jobs.len()])
        };
        let call = &call;
        let together = (0..100).any(|_| {
            let (a, b) = (coalescer.coming(), coalescer.coming());
            std::thread::scope(|threads| {
                let other = threads.spawn(move || call(b));
                // Together but where this machine takes longer than a moment to start a thread.
                call(a) == Some(2) && other.join().expect("no panic") == Some(2)
            })
        });
        assert!(together);
        assert_eq!(coalescer.lock().coming, 0);
    }

    #[test]
    fn who_waits_does_something_else_first() {
        let (coalescer, done) = (Coalescer::<u32, u32>::new(WAIT), AtomicUsize::new(0));
        let call = |x: u32, wait: bool| {
            let run = |jobs| {
                while wait && done.load(Ordering::SeqCst) == 0 {
                    std::thread::yield_now();
                }
                jobs
            };
            let meanwhile = || {
                done.fetch_add(1, Ordering::SeqCst);
            };
            coalescer.call_meanwhile(None, (x, Patience::NONE), (9, ANY), run, meanwhile)
        };
        let call = &call;
        std::thread::scope(|threads| {
            // Leads until the other one has done something else.
            let first = threads.spawn(move || call(1, true));
            while coalescer.lock().leaders == 0 {
                std::thread::yield_now();
            }
            assert_eq!(call(2, false), Some(2));
            assert_eq!(first.join().expect("no panic"), Some(1));
        });
        assert_eq!(done.load(Ordering::SeqCst), 1, "once, and not by who led");
    }

    #[test]
    fn others_are_told_of_a_panic_and_go_on() {
        let coalescer = Coalescer::<u32, u32>::new(WAIT);
        std::thread::scope(|threads| {
            let first = threads.spawn(|| {
                coalescer.call(None, (1, Patience::NONE), (9, ANY), |_| {
                    while coalescer.lock().waiting.is_empty() {
                        std::thread::yield_now();
                    }
                    // Takes the other one's work along.
                    coalescer.lock().waiting.clear();
                    panic!("as a test")
                })
            });
            while coalescer.lock().leaders == 0 {
                std::thread::yield_now();
            }
            assert_eq!(coalescer.call(None, (2, Patience::NONE), (9, ANY), |jobs| jobs), None);
            assert!(first.join().is_err());
        });
        assert_eq!(coalescer.call(None, (3, Patience::NONE), (9, ANY), |jobs| jobs), Some(3));
    }

    #[test]
    fn work_with_time_waits_for_enough_or_for_work_without() {
        let coalescer = Coalescer::<u32, usize>::new(WAIT);
        let call = |patience| {
            coalescer.call(None, (1, patience), (9, ANY), |jobs: Vec<u32>| vec![jobs.len(); jobs.len()])
        };
        let (call, long) = (&call, Duration::from_secs(60));
        let patience = |enough| Patience { time: long, enough };
        for second in [patience(2), Patience::NONE] {
            std::thread::scope(|threads| {
                let first = threads.spawn(move || call(patience(if second.enough == 2 { 2 } else { 5 })));
                while coalescer.lock().leaders == 0 {
                    std::thread::yield_now();
                }
                assert_eq!(call(second), Some(2));
                assert_eq!(first.join().expect("no panic"), Some(2));
            });
        }
        let short = Patience { time: Duration::from_millis(1), enough: 5 };
        assert_eq!(call(short), Some(1));
        assert_eq!(coalescer.lock().hurried, 0);
    }
}
