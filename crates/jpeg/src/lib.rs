//! A JPEG decoder that decodes only the region that is asked for.
