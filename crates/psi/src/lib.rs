//! PSI: a lossless image format made for parallel decoding.
