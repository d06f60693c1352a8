//! Answers on a socket: with limits on connections and headers, up to a graceful end.

use crate::Server;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
#[cfg(unix)]
use tokio::net::UnixListener;
use tokio::sync::{Semaphore, watch};

/// Most bytes of a header.
const MOST_HEADER: usize = 16 << 10;
/// Pause after the system could not accept a connection, such as for want of files.
const PAUSE: Duration = Duration::from_millis(100);

/// A socket that listens.
#[derive(Debug)]
pub enum Listener {
    /// An address of the network.
    Tcp(TcpListener),
    /// A path of the file system.
    #[cfg(unix)]
    Unix(UnixListener),
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

impl Listener {
    async fn accept(&self) -> io::Result<Box<dyn Stream>> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // Sound goes out when it is made, not when a packet is full.
                stream.set_nodelay(true)?;
                Ok(Box::new(stream))
            }
            #[cfg(unix)]
            Listener::Unix(listener) => Ok(Box::new(listener.accept().await?.0)),
        }
    }
}

/// Answers requests until `end`, then lets those that run go on for `drain` at most.
pub async fn serve(server: &Server, listener: Listener, end: impl Future<Output = ()>, drain: Duration) {
    let settings = &server.0.settings;
    let connections = Arc::new(Semaphore::new(settings.connections));
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
        let service = TowerToHyperService::new(router.clone());
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
            drop(place);
        });
    }
    server.drain();
    drop((listener, ending));
    let all = u32::try_from(settings.connections).unwrap_or(u32::MAX);
    let answered = async {
        let _ = connections.acquire_many(all).await;
        // Sockets with text in parts have left their connections.
        while server.in_flight() > 0 {
            tokio::time::sleep(PAUSE).await;
        }
    };
    let _ = tokio::time::timeout(drain, answered).await;
}
