//! Where samples lie, read row by row where the catalog has its columns.

use penstock_engine::step::FieldRequests;
use pyo3::buffer::{Element, PyBuffer};
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;

/// A number a row of a table: in memory, or as a formula says.
enum Column<T: Element> {
    Values(PyBuffer<T>),
    Ramp { start: u64, step: u64 },
}

/// A number that a column can hold.
trait Number: Element {
    fn of(value: u64) -> Self;
}

macro_rules! numbers {
    ($($kind:ty),*) => {
        $(impl Number for $kind {
            #[allow(clippy::cast_possible_truncation)] // Arithmetic modulo the type, as the catalog's own formula does.
            fn of(value: u64) -> Self {
                value as $kind
            }
        })*
    };
}

numbers!(u8, u32, u64, i64);

impl<T: Number> Column<T> {
    /// From an array, or from `(start, step)`.
    fn from_python(object: &Bound<'_, PyAny>, rows: usize) -> PyResult<Self> {
        if let Ok((start, step)) = object.extract::<(u64, u64)>() {
            return Ok(Column::Ramp { start, step });
        }
        let values = PyBuffer::<T>::get(object)?;
        if !values.is_c_contiguous() || values.item_count() != rows {
            return Err(PyValueError::new_err(format!(
                "a column of {} values stands for {rows} rows",
                values.item_count()
            )));
        }
        Ok(Column::Values(values))
    }

    /// The values of `rows`, which lie in the table.
    fn take(&self, rows: &[usize]) -> Vec<T> {
        match self {
            Column::Ramp { start, step: 0 } => vec![T::of(*start); rows.len()],
            Column::Ramp { start, step } => {
                let at = |&row: &usize| T::of(start.wrapping_add(step.wrapping_mul(row as u64)));
                rows.iter().map(at).collect()
            }
            Column::Values(values) => {
                // SAFETY: as many values as rows (checked when it was made), contiguous and aligned as PyBuffer makes sure;
                // catalogs' columns are never written to, and the buffer keeps this one alive.
                let values = unsafe {
                    std::slice::from_raw_parts(values.buf_ptr().cast::<T>(), values.item_count())
                };
                rows.iter().map(|&row| values[row]).collect()
            }
        }
    }
}

struct Field {
    object: Column<u32>,
    offset: Column<u64>,
    length: Column<u64>,
    crc32c: Option<Column<u32>>,
    format: Column<u8>,
}

/// A catalog as the pipeline reads it: the rows of it that there are, their ids, and their addresses by field.
#[pyclass(module = "penstock._native", frozen)]
pub struct Addresses {
    /// Rows of the table, where the catalog has not all of them in order.
    chosen: Option<Column<i64>>,
    /// Rows of the catalog, and of the table under it.
    rows: usize,
    table: usize,
    ids: Option<Column<u64>>,
    fields: Vec<Field>,
}

#[pymethods]
impl Addresses {
    /// Columns of `table` rows, each an array or `(start, step)`: `chosen` (or None for all rows in order), `ids` (or None
    /// where they are the row numbers), and for each field object, offset, length, crc32c (or None) and format.
    #[new]
    fn new(
        table: usize,
        chosen: Option<Bound<'_, PyAny>>,
        ids: Option<Bound<'_, PyAny>>,
        fields: Vec<[Option<Bound<'_, PyAny>>; 5]>,
    ) -> PyResult<Self> {
        fn column<T: Number>(
            object: Option<&Bound<'_, PyAny>>,
            rows: usize,
        ) -> PyResult<Option<Column<T>>> {
            object
                .map(|object| Column::from_python(object, rows))
                .transpose()
        }
        let needed = || PyValueError::new_err("a field without object, offset, length or format");
        let rows = match &chosen {
            Some(chosen) => chosen.len()?,
            None => table,
        };
        let fields = fields
            .iter()
            .map(|[object, offset, length, crc32c, format]| {
                Ok(Field {
                    object: column(object.as_ref(), table)?.ok_or_else(needed)?,
                    offset: column(offset.as_ref(), table)?.ok_or_else(needed)?,
                    length: column(length.as_ref(), table)?.ok_or_else(needed)?,
                    crc32c: column(crc32c.as_ref(), table)?,
                    format: column(format.as_ref(), table)?.ok_or_else(needed)?,
                })
            })
            .collect::<PyResult<_>>()?;
        Ok(Self {
            chosen: column(chosen.as_ref(), rows)?,
            rows,
            table,
            ids: column(ids.as_ref(), table)?,
            fields,
        })
    }
}

impl Addresses {
    /// Ids and addresses of rows of the catalog.
    pub fn take(&self, rows: &[u64]) -> PyResult<(Vec<u64>, Vec<FieldRequests>)> {
        if let Some(row) = rows.iter().find(|&&row| row >= self.rows as u64) {
            let count = self.rows;
            return Err(PyIndexError::new_err(format!(
                "the plan names row {row} of {count}"
            )));
        }
        let mut rows: Vec<usize> = rows.iter().map(|&row| row as usize).collect();
        if let Some(chosen) = &self.chosen {
            rows = chosen
                .take(&rows)
                .into_iter()
                .map(|row| row as usize)
                .collect();
            if rows.iter().any(|&row| row >= self.table) {
                return Err(PyIndexError::new_err(
                    "the catalog names a row that its table does not have",
                ));
            }
        }
        let ids = match &self.ids {
            Some(ids) => ids.take(&rows),
            None => rows.iter().map(|&row| row as u64).collect(),
        };
        let fields = self.fields.iter().map(|field| FieldRequests {
            object: field.object.take(&rows),
            offset: field.offset.take(&rows),
            length: field.length.take(&rows),
            crc32c: field
                .crc32c
                .as_ref()
                .map_or_else(Vec::new, |c| c.take(&rows)),
            format: field.format.take(&rows),
        });
        Ok((ids, fields.collect()))
    }
}
