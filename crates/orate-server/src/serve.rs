//! Listens on a socket, with limits on connections, headers and stalled clients, and ends gracefully.

use crate::Server;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpListener;
#[cfg(unix)]
use tokio::net::UnixListener;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::Sleep;
use tower::ServiceExt as _;

/// Most bytes of a header.
const MOST_HEADER: usize = 16 << 10;
/// Pause after a failure to accept, such as for want of file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// A listening socket.
#[derive(Debug)]
pub enum Listener {
    /// An address of the network.
    Tcp(TcpListener),
    /// A path of the file system.
    #[cfg(unix)]
    Unix(UnixListener),
}

/// A byte stream of a client.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

impl Listener {
    async fn accept(&self) -> io::Result<Box<dyn Stream>> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // Audio goes out as it is made, not when a packet is full.
                stream.set_nodelay(true)?;
                Ok(Box::new(stream))
            }
            #[cfg(unix)]
            Listener::Unix(listener) => Ok(Box::new(listener.accept().await?.0)),
        }
    }
}

/// Whether a connection failed because its client read nothing. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Stalled(Arc<AtomicBool>);

impl Stalled {
    /// Marks the connection.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it is marked.
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A connection in one of the server's places. Writing fails once the client has read nothing for `stall`:
/// otherwise clients that never read would take all places for good.
pub struct Connection {
    stream: Box<dyn Stream>,
    _place: OwnedSemaphorePermit,
    stall: Duration,
    /// End of the wait of a write.
    deadline: Option<Pin<Box<Sleep>>>,
    stalled: Stalled,
}

impl Connection {
    /// Takes a place for a stream.
    pub fn new(stream: Box<dyn Stream>, place: OwnedSemaphorePermit, stall: Duration) -> Connection {
        Connection { stream, _place: place, stall, deadline: None, stalled: Stalled::default() }
    }

    /// Is marked when writing fails because the client reads nothing.
    pub fn stalled(&self) -> Stalled {
        self.stalled.clone()
    }

    fn timed(&mut self, cx: &mut Context<'_>, write: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if write.is_ready() {
            self.deadline = None;
            return write;
        }
        let stall = self.stall;
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(stall)));
        deadline.as_mut().poll(cx).map(|()| {
            self.stalled.set();
            Err(io::ErrorKind::TimedOut.into())
        })
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, to)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        let write = Pin::new(&mut self.stream).poll_write(cx, from);
        self.timed(cx, write)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let write = Pin::new(&mut self.stream).poll_write_vectored(cx, from);
        self.timed(cx, write)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Answers requests until `end`, then waits for running ones, for `drain` at most.
pub async fn serve(server: &Server, listener: Listener, end: impl Future<Output = ()>, drain: Duration) {
    let (settings, connections) = (&server.0.settings, &server.0.connections);
    let (ending, ended) = watch::channel(());
    let router = server.router();
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(settings.header_timeout).max_buf_size(MOST_HEADER);
    tokio::pin!(end);
    loop {
        let next = async {
            let place = connections.clone().acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, stream) = tokio::select! {
            next = next => next,
            () = &mut end => break,
        };
        let (Ok(place), Ok(stream)) = (place, stream) else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let stream = Connection::new(stream, place, settings.stall_timeout);
        let stalled = stream.stalled();
        let service = router.clone().map_request(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(stalled.clone());
            request
        });
        let service = TowerToHyperService::new(service);
        let connection = http.serve_connection(TokioIo::new(stream), service).with_upgrades();
        let mut ended = ended.clone();
        tokio::spawn(async move {
            tokio::pin!(connection);
            tokio::select! {
                _ = connection.as_mut() => {}
                _ = ended.changed() => {
                    connection.as_mut().graceful_shutdown();
                    let _ = connection.await;
                }
            }
        });
    }
    server.drain();
    drop((listener, ending));
    let running = server.in_flight();
    if running > 0 {
        let seconds = drain.as_secs();
        let text = format!("shutting down; {running} requests have up to {seconds} s to end");
        server.log(&text, &[("draining", running.into()), ("seconds", seconds.into())]);
    }
    let all = u32::try_from(settings.connections).unwrap_or(u32::MAX);
    let ended = tokio::time::timeout(drain, connections.acquire_many(all)).await;
    server.0.is_over.store(ended.is_err(), Ordering::Relaxed);
}
