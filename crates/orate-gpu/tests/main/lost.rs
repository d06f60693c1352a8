//! A device is lost at any moment: every use returns a helpful error, nothing panics or hangs, and a device
//! opened afterwards works.

use crate::common;
use orate_gpu::GpuDevice;
use orate_graph::{
    Activation, DType, Device, DeviceError, Executable, Graph, Memory, ModelOnDevice, Plan, Result as Built,
    Weight,
};
use orate_testing::RandomWeights;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

/// Longer work is considered hanging.
const LONGEST: Duration = Duration::from_secs(60);

const ROWS: usize = 64;
const WIDTH: usize = 64;

/// `state ← tanh(state · w)`, `times` times.
fn chain(name: &str, times: usize) -> Built<Graph> {
    let mut g = Graph::new(name);
    let mut x = g.state("state", DType::F32, [1, ROWS, WIDTH])?;
    for _ in 0..times {
        x = g.matmul(x, Weight::named("w", [WIDTH, WIDTH]))?;
        x = g.activate(x, Activation::Tanh)?;
    }
    g.update("state", x)?;
    let mut ids = g.input("ids", DType::I32, [4])?;
    ids = g.increment(ids, 1)?;
    g.output("counted", ids)?;
    Ok(g)
}

/// A model on a device, with a plan and a memory.
struct Session {
    device: Arc<GpuDevice>,
    model: Box<dyn ModelOnDevice>,
    plan: Arc<dyn Executable>,
    memory: Box<dyn Memory>,
}

impl Session {
    fn new(device: &Arc<GpuDevice>) -> Session {
        let graph = chain("chain", 40).expect("builds");
        let model = device.open(Arc::new(RandomWeights::of_graph(&graph, 3)));
        let plan = model.load(Plan::compile(graph, &**device).expect("compiles")).expect("loads");
        let mut session = Session { device: device.clone(), model, plan, memory: device.memory() };
        session.write().expect("writes");
        session
    }

    fn write(&mut self) -> Result<(), DeviceError> {
        self.memory.write_f32("state", &[1, ROWS, WIDTH].into(), &[0.1; ROWS * WIDTH])?;
        self.memory.write_i32("ids", &[4].into(), &[1, 2, 3, 4])
    }

    fn run(&mut self) -> Result<(), DeviceError> {
        self.plan.run(self.memory.as_mut())
    }

    fn read(&mut self) -> Result<Vec<f32>, DeviceError> {
        let mut out = vec![];
        self.memory.read_f32("state", &mut out).map(|_| out)
    }

    /// Loads a new plan, with another name and length.
    fn load(&self, times: usize) -> Result<(), DeviceError> {
        let graph = chain("another", times)?;
        self.model.load(Plan::compile(graph, &*self.device)?).map(drop)
    }
}

/// Runs work that may hang on its own thread.
fn in_time<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = mpsc::channel();
    std::thread::spawn(move || drop(done.send(work())));
    result.recv_timeout(LONGEST).unwrap_or_else(|e| panic!("{what}: {e}: it hangs or has panicked"))
}

#[track_caller]
fn is_lost<T>(what: &str, result: Result<T, DeviceError>) {
    let Err(e) = result else { panic!("{what}: it worked") };
    let (name, text) = (common::device().info().id(), e.to_string());
    let says = ["was lost", "open the model anew or choose another device"];
    assert!(matches!(e, DeviceError::Failed { .. }), "{what}: {text}");
    assert!(text.contains(&name) && says.iter().all(|s| text.contains(s)), "{what}: {text}");
}

/// Tries every operation of a session.
fn everything_is_lost(s: &mut Session) {
    is_lost("read", s.read());
    is_lost("write", s.write());
    is_lost("run", s.run());
    is_lost("profile", s.plan.profile(s.memory.as_mut()));
    is_lost("run_times", s.plan.run_times(s.memory.as_mut(), "none", 3, &|| true));
    is_lost("clear", s.memory.clear("other", DType::F32, &[8].into()));
    is_lost("reserve", s.memory.reserve("other", DType::F32, &[8].into()));
    is_lost("wait", s.memory.wait());
    is_lost("read_later", s.memory.read_later("ids"));
    is_lost("load", s.load(3));
    let mut fresh = s.device.memory();
    is_lost("a new memory", fresh.write_i32("ids", &[4].into(), &[1; 4]));
    is_lost("a copy", fresh.copy_from(s.memory.as_mut(), &[]));
}

/// A device opened afterwards works.
fn a_new_device_works() {
    let mut s = Session::new(&Arc::new(common::device()));
    s.run().expect("runs");
    assert_eq!(s.read().expect("reads").len(), ROWS * WIDTH);
}

#[test]
fn between_two_runs() {
    in_time("between two runs", || {
        let mut s = Session::new(&Arc::new(common::device()));
        s.run().expect("runs");
        s.read().expect("reads");
        s.device.lose();
        // A run submitted to a lost device may fail only when its result is read.
        let ran = s.run();
        is_lost("run and read", ran.and_then(|()| s.read()));
        everything_is_lost(&mut s);
        drop(s);
        a_new_device_works();
    });
}

#[test]
fn while_a_run_is_under_way() {
    in_time("while a run is under way", || {
        let mut s = Session::new(&Arc::new(common::device()));
        s.run().expect("runs");
        let ticket = s.memory.read_later("counted").expect("queues");
        s.run().expect("runs");
        s.device.lose();
        // The result of an earlier submission may still be returned.
        let mut out = vec![];
        match s.memory.finish(ticket, &mut out) {
            Ok(_) => assert_eq!(out, [2, 3, 4, 5]),
            e => is_lost("finish", e),
        }
        is_lost("read", s.read());
        everything_is_lost(&mut s);
        // Drops everything while work and copies are in progress.
        let mut s = Session::new(&Arc::new(common::device()));
        s.run().expect("runs");
        let ticket = s.memory.read_later("counted").expect("queues");
        s.device.lose();
        s.memory.discard(ticket);
        drop(s);
        a_new_device_works();
    });
}

/// The device is lost at arbitrary moments, while another thread runs, reads or loads.
fn at_any_moment(what: &'static str, work: fn(&mut Session, usize) -> Result<(), DeviceError>) {
    in_time(what, move || {
        for delay in [0, 50, 200, 500, 1000, 2000, 5000, 10_000, 20_000] {
            let mut s = Session::new(&Arc::new(common::device()));
            let device = s.device.clone();
            let loser = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_micros(delay));
                device.lose();
            });
            let end = (0..10_000).find_map(|i| work(&mut s, i).err());
            loser.join().expect("does not panic");
            is_lost(what, end.map_or(Ok(()), Err));
            everything_is_lost(&mut s);
        }
        a_new_device_works();
    });
}

#[test]
fn during_a_read_back() {
    at_any_moment("during a read-back", |s, _| s.read().map(drop));
}

#[test]
fn during_a_later_read() {
    at_any_moment("during a later read", |s, _| {
        s.run()?;
        let ticket = s.memory.read_later("counted")?;
        s.memory.finish(ticket, &mut vec![]).map(drop)
    });
}

#[test]
fn during_a_run() {
    at_any_moment("during a run", |s, i| {
        s.write()?;
        s.run()?;
        if i % 4 == 3 { s.read().map(drop) } else { Ok(()) }
    });
}

#[test]
fn while_memory_grows() {
    at_any_moment("while memory grows", |s, i| {
        let rows = 1 + i % 20 * 20_000;
        s.memory.write_f32("large", &[rows].into(), &vec![1.0; rows])?;
        if i % 20 == 19 {
            s.memory.shrink_to(0);
            s.write()?;
        }
        Ok(())
    });
}

#[test]
fn while_plans_are_loaded() {
    at_any_moment("while plans are loaded", |s, i| s.load(1 + i % 7));
}

/// Weights are uploaded and kernels compiled on several threads.
#[test]
fn while_a_model_is_loaded() {
    in_time("while a model is loaded", || {
        for delay in [0, 1, 2, 5, 10, 20, 50] {
            let device = Arc::new(common::device());
            let lost = device.clone();
            let loser = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(delay));
                lost.lose();
            });
            let graph = chain("chain", 3).expect("builds");
            let model = device.open(Arc::new(RandomWeights::of_graph(&graph, 3)));
            let plan = model.load(Plan::compile(graph, &*device).expect("compiles"));
            loser.join().expect("does not panic");
            // Either it was fast enough, or it returns an error.
            if plan.is_err() {
                is_lost("load", plan);
            }
            let graph = chain("again", 2).expect("builds");
            is_lost("load again", model.load(Plan::compile(graph, &*device).expect("compiles")));
        }
        a_new_device_works();
    });
}

/// Other users of the device get errors too; a separately opened device is not affected.
#[test]
fn others_of_the_device_are_told() {
    in_time("others of the device", || {
        let (device, apart) = (Arc::new(common::device()), Arc::new(common::device()));
        let (mut one, mut other, mut third) =
            (Session::new(&device), Session::new(&device), Session::new(&apart));
        for s in [&mut one, &mut other, &mut third] {
            s.run().expect("runs");
        }
        device.lose();
        is_lost("read", one.read());
        everything_is_lost(&mut other);
        assert_eq!(third.read().expect("another device").len(), ROWS * WIDTH);
        third.run().expect("another device");
    });
}

#[test]
fn several_threads_are_told_at_once() {
    in_time("several threads", || {
        let device = Arc::new(common::device());
        let mut sessions: Vec<_> = (0..4).map(|_| Session::new(&device)).collect();
        std::thread::scope(|scope| {
            let runs: Vec<_> = sessions
                .iter_mut()
                .map(|s| {
                    let forever = || loop {
                        if let Err(e) = s.run().and_then(|()| s.read()) {
                            return e;
                        }
                    };
                    scope.spawn(forever)
                })
                .collect();
            std::thread::sleep(Duration::from_millis(30));
            device.lose();
            for run in runs {
                is_lost("a thread", Err::<(), _>(run.join().expect("does not panic")));
            }
        });
    });
}
