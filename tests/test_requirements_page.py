"""The page that joins requirements and tests says what the tests say."""

import os
import textwrap
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from mark_collector import MarkCollector
from scripts_loaded import load_script

ROOT = Path(__file__).parents[1]
GROUPS = {
    "R-X": {"title": "Things", "source": "after others", "1": "One.", "2": "Two.", "10": "Ten."}
}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """The generator, which is no part of the package."""
    return load_script("requirements")


def test_page_is_up_to_date(script: ModuleType, request: pytest.FixtureRequest) -> None:
    """The page is what the generator writes now; `make requirements` renews it."""
    config = request.config
    collected = {config.rootpath / arg for arg in config.args}
    if collected != {config.rootpath / path for path in config.getini("testpaths")}:
        pytest.skip("this run has not collected all tests")
    collector = config.pluginmanager.get_plugin("requirement marks")
    assert isinstance(collector, MarkCollector)
    table = tomllib.loads(script.TABLE.read_text())
    page = script.render(table, collector.marks, collector.product)
    assert script.PAGE.read_text() == page, "run `make requirements`"


def test_requirement_names_its_tests_once(script: ModuleType) -> None:
    """Marks on many cases of one test give one name; what nobody carries says so."""
    marks = [("R-X-1", "b::t"), ("R-X-1", "a::t"), ("R-X-1", "b::t")]
    page = script.render(GROUPS, marks, marks[1:2])
    assert "| R-X-1 | One. | product | `a::t`<br>`b::t` |" in page
    assert "| R-X-2 | Two. | not yet | not yet |" in page


def test_what_differs_stands_beside_the_meaning(script: ModuleType) -> None:
    """So nobody reads one without the other."""
    groups = {"R-X": {**GROUPS["R-X"], "differs": {"2": "by half, for a reason"}}}
    page = script.render(groups, [("R-X-1", "a::t")], [("R-X-1", "a::t")])
    assert "| R-X-2 | Two. **Differs:** by half, for a reason. | not yet |" in page
    assert page.count("Differs:**") == 1


def test_a_machine_is_enough_only_with_a_reason(script: ModuleType) -> None:
    """And a reason stands nowhere else."""
    with_reason = {"R-X": {**GROUPS["R-X"], "machine": {"1": "it is called as it is."}}}
    marks = [("R-X-1", "a::t")]
    page = script.render(with_reason, marks)
    assert "| R-X-1 | One. | machine: it is called as it is. | `a::t` |" in page
    for groups, product in ((GROUPS, []), (with_reason, marks)):
        with pytest.raises(SystemExit, match="R-X-1"):
            script.render(groups, marks, product)


def test_mark_that_the_table_does_not_know_is_refused(script: ModuleType) -> None:
    """A mistyped id on a test is an error, not a requirement without a test."""
    with pytest.raises(SystemExit, match="R-X-3"):
        script.render(GROUPS, [("R-X-3", "a::t")])


def test_marks_on_functions_classes_and_cases_are_all_found(
    script: ModuleType, tmp_path: Path
) -> None:
    """A mark counts wherever pytest lets it stand, also on tests that are deselected later."""
    code = """
        import pytest
        mark = pytest.mark.requirement

        @mark("R-X-1", "R-X-2")
        def test_function(): pass

        @mark("R-X-3")
        class TestClass:
            def test_method(self): pass

        @pytest.mark.parametrize("n", [1, pytest.param(2, marks=mark("R-X-4"))])
        def test_case(n): pass

        @pytest.mark.soak
        @mark("R-X-5", through="product")
        def test_deselected(): pass
    """
    (tmp_path / "test_marks.py").write_text(textwrap.dedent(code))
    collector = MarkCollector()
    # a bare configuration: the project's own belongs to the run that this test is part of
    options = ["--collect-only", "-qq", "-p", "no:cacheprovider", "-c", os.devnull]
    pytest.main([*options, "-m", "not soak", str(tmp_path)], plugins=[collector])
    assert {(name, test.rpartition("/")[2]) for name, test in collector.marks} == {
        ("R-X-1", "test_marks.py::test_function"),
        ("R-X-2", "test_marks.py::test_function"),
        ("R-X-3", "test_marks.py::TestClass::test_method"),
        ("R-X-4", "test_marks.py::test_case"),
        ("R-X-5", "test_marks.py::test_deselected"),
    }
    assert {name for name, _ in collector.product} == {"R-X-5"}
