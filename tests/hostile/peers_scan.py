"""Runs in the environment of the peers: reads paths as JSON on stdin, writes what each scanner says of each as JSON.

No scanner runs what it scans. An error of a scanner is an answer: what cannot be read is not waved through.
"""

import contextlib
import io
import json
import logging
import sys


def picklescan(path: str) -> str:
    from picklescan.scanner import SafetyLevel, scan_file_path

    found = scan_file_path(path)
    if found.issues_count:
        return "danger"
    if found.scan_err:
        return "error"
    return "suspicious" if any(g.safety == SafetyLevel.Suspicious for g in found.globals) else "clean"


def fickling(path: str) -> str:
    import zipfile

    from fickling.analysis import Severity
    from fickling.loader import scan_file, scan_zip_archive

    found = list(scan_zip_archive(path).values()) if zipfile.is_zipfile(path) else [scan_file(path)]
    if not found:
        return "error"
    severity = max(one.severity for one in found)
    if severity >= Severity.LIKELY_OVERTLY_MALICIOUS:
        return "danger"
    return "suspicious" if severity > Severity.LIKELY_SAFE else "clean"


def modelscan(path: str) -> str:
    from modelscan.modelscan import ModelScan

    scan = ModelScan()
    with contextlib.redirect_stdout(io.StringIO()):
        found = scan.scan(path)
    if found["summary"]["total_issues"]:
        return "danger"
    if found.get("errors"):
        return "error"
    return "clean" if found["summary"]["scanned"]["total_scanned"] else "error"


def main() -> None:
    logging.disable(logging.CRITICAL)
    rows: dict[str, dict[str, str]] = {}
    for path in json.load(sys.stdin):
        rows[path] = {}
        for scan in (picklescan, fickling, modelscan):
            try:
                with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
                    rows[path][scan.__name__] = scan(path)
            except Exception as error:  # noqa: BLE001 - whatever it is, the scanner could not read the file
                rows[path][scan.__name__] = f"error: {type(error).__name__}"
    json.dump(rows, sys.stdout)


if __name__ == "__main__":
    main()
