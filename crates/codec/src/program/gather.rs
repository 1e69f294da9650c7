//! Geometry that only moves pixels, done at once with an index table per axis: masks, and images of element
//! types that are not resampled.

/// Copies, for each output pixel, the pixel that `columns` and `rows` point at; a negative entry is the number
/// of the fill (−1−n). `source` holds the rows and columns from (`left`, `top`) on.
#[allow(clippy::too_many_arguments)]
pub(crate) fn gather(
    source: &[u8],
    width: usize,
    (left, top): (usize, usize),
    pixel: usize,
    columns: &[i32],
    rows: &[i32],
    fills: impl Fn(usize) -> [u8; 8],
    element: usize,
    out: &mut [u8],
) {
    let fill = |number: i32, place: &mut [u8]| {
        let bytes = fills((-1 - number) as usize);
        for value in place.chunks_exact_mut(element) {
            value.copy_from_slice(&bytes[..element]);
        }
    };
    for (row, &y) in out.chunks_exact_mut(columns.len() * pixel).zip(rows) {
        if y < 0 {
            for (place, &x) in row.chunks_exact_mut(pixel).zip(columns) {
                // Where both axes pad, the later stage is the one that is seen.
                fill(y.min(x), place);
            }
            continue;
        }
        let line = &source[(y as usize - top) * width * pixel..][..width * pixel];
        match pixel {
            1 => {
                for (place, &x) in row.iter_mut().zip(columns) {
                    if x < 0 {
                        fill(x, std::slice::from_mut(place));
                    } else {
                        *place = line[x as usize - left];
                    }
                }
            }
            _ => {
                for (place, &x) in row.chunks_exact_mut(pixel).zip(columns) {
                    if x < 0 {
                        fill(x, place);
                    } else {
                        let at = (x as usize - left) * pixel;
                        place.copy_from_slice(&line[at..at + pixel]);
                    }
                }
            }
        }
    }
}

/// The smallest and one past the largest source index of a table; one pixel where all is padding.
pub(crate) fn extent(table: &[i32]) -> (usize, usize) {
    let inside = table.iter().filter(|&&at| at >= 0);
    match (inside.clone().min(), inside.max()) {
        (Some(&first), Some(&last)) => (first as usize, last as usize + 1),
        _ => (0, 1),
    }
}
