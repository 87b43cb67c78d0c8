//! The one error type of the crate: a code that C++ maps to its own, and a sentence for the reader.

use std::any::Any;
use std::fmt;

/// Keep in step with `TandemTextCode` of the C header (a test compares them).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ErrorCode {
    InvalidArgument = 1,
    NotFound = 2,
    ResourceExhausted = 3,
    DataLoss = 4,
    Internal = 5,
    Unimplemented = 6,
    Unavailable = 7,
    SystemLimit = 8,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    pub code: ErrorCode,
    pub message: String,
}

impl Error {
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidArgument, message)
    }
    pub fn data_loss(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::DataLoss, message)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// The message of a caught panic.
pub fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("unknown")
}

pub type Result<T> = std::result::Result<T, Error>;
