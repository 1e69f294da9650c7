//! What Pillow and torchvision make of the same files: `data/make.py` has written it down.

use std::path::Path;

use penstock_codec::{Draw, FieldSpec, Format, Kind, Limits, Program, Scratch, TensorSpec};

fn npy(bytes: &[u8], scratch: &mut Scratch) -> (TensorSpec, Vec<u8>) {
    let field = FieldSpec {
        name: "expected".into(),
        kind: Kind::Array,
        raw: None,
    };
    let program =
        Program::from_json(r#"{"version":1,"mode":"rgb","layout":null,"ops":[]}"#).unwrap();
    let draw = Draw::new(0, 0, 0);
    let spec = program
        .output(&field, Format::Npy, bytes, &draw, &Limits::default())
        .unwrap();
    let mut out = vec![0; spec.bytes().unwrap()];
    program
        .run(
            &field,
            Format::Npy,
            bytes,
            &draw,
            &mut out,
            scratch,
            &Limits::default(),
        )
        .unwrap();
    (spec, out)
}

#[test]
fn pixels_are_those_of_pillow() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let cases: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(folder.join("cases.json")).unwrap()).unwrap();
    let mut scratch = Scratch::default();
    let mut wrong = Vec::new();
    let cases = cases.as_array().unwrap();
    assert!(cases.len() > 80, "the table of cases is cut short");
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let file = case["file"].as_str().unwrap();
        let bytes = std::fs::read(folder.join(file)).unwrap();
        let format = Format::from_extension(file.rsplit('.').next().unwrap()).unwrap();
        let kind = Kind::from_name(case["kind"].as_str().unwrap()).unwrap();
        let field = FieldSpec {
            name: name.into(),
            kind,
            raw: None,
        };
        let program = Program::from_json(&case["program"].to_string()).unwrap();
        let tolerance = case["tolerance"].as_u64().unwrap() as i64;
        let expected = std::fs::read(folder.join(format!("{name}.npy"))).unwrap();
        let (expected_spec, expected) = npy(&expected, &mut scratch);

        let draw = Draw::new(7, 1, 5);
        let spec = program
            .output(&field, format, &bytes, &draw, &Limits::default())
            .unwrap();
        if spec != expected_spec {
            wrong.push(format!("{name}: {spec:?} instead of {expected_spec:?}"));
            continue;
        }
        let mut out = vec![0; spec.bytes().unwrap()];
        program
            .run(
                &field,
                format,
                &bytes,
                &draw,
                &mut out,
                &mut scratch,
                &Limits::default(),
            )
            .unwrap();
        let wide = spec.dtype.size() == 2;
        let value = |data: &[u8], at: usize| {
            if wide {
                i64::from(u16::from_le_bytes([data[2 * at], data[2 * at + 1]]))
            } else {
                i64::from(data[at])
            }
        };
        let count = out.len() / spec.dtype.size();
        // A colour counts as much as it is opaque: Pillow divides by alpha after resampling.
        let opaque = |at: usize| match spec.shape[..] {
            [_, _, 4] if tolerance > 0 && at % 4 < 3 => value(&expected, at / 4 * 4 + 3),
            _ => 255,
        };
        let differences: Vec<i64> = (0..count)
            .map(|at| (value(&out, at) - value(&expected, at)).abs() * opaque(at) / 255)
            .collect();
        let worst = differences.iter().max().copied().unwrap_or(0);
        // There the colour and the alpha may each be a level apart.
        let tolerance = if tolerance > 0 && spec.shape.last() == Some(&4) {
            2
        } else {
            tolerance
        };
        if worst > tolerance {
            let many = differences
                .iter()
                .filter(|&&difference| difference > tolerance)
                .count();
            wrong.push(format!(
                "{name}: {many} of {count} values differ, by up to {worst}"
            ));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {} cases:\n{}",
        wrong.len(),
        cases.len(),
        wrong.join("\n")
    );
}
