"""Hostile templates: each ends in one line that names the template, and the next render works."""

import gc
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from edgeinfer.errors import TemplateFailed
from edgeinfer.tokenizer.sandbox import MAX_SOURCE, Sandbox

NAME = "chat template of m.gguf"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    box = Sandbox()
    yield box
    box.close()


def render(sandbox: Sandbox, source: str) -> str:
    return sandbox.render(source, [{"x": "text", "items": [1, 2]}], NAME)[0].unwrap()


def started(sandbox: Sandbox) -> psutil.Process:
    """Starts the sandbox's child and returns it."""
    before = set(psutil.Process().children())
    render(sandbox, "")
    [child] = set(psutil.Process().children()) - before
    return child


ATTACKS = [
    ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "access to attribute '__class__' of 'str' is refused"),
    ("{{ ''.__class__ }}", "'__class__'"),
    ("{{ x['__class__'] }}", "'__class__'"),
    ("{{ x | attr('__class__') }}", "'__class__'"),
    ("{{ [x] | map(attribute='__class__') | list }}", "'__class__'"),
    ("{{ cycler.__init__.__globals__.os }}", "'__init__'"),
    ("{{ joiner.__init__ }}", "'__init__'"),
    ("{{ lipsum.__globals__ }}", "'__globals__'"),
    ("{{ self.__init__ }}", "'__init__'"),
    ("{{ self._TemplateReference__context }}", "'_TemplateReference__context'"),
    ("{{ raise_exception.__globals__ }}", "'__globals__'"),
    ("{{ '{0.__class__}'.format(x) }}", "'__class__'"),
    ("{{ '{a.__class__}'.format_map({'a': x}) }}", "'__class__'"),
    ("{{ ('{0.__cla' ~ 'ss__}').format(x) }}", "'__class__'"),
    ("{% set f = '{0.__class__}'.format %}{{ f(x) }}", "'__class__'"),
    ("{{ items.append(3) }}", "access to attribute 'append' of 'list' is refused"),
    ("{{ {}.update({'a': 1}) }}", "access to attribute 'update' of 'dict' is refused"),
    ("{% set n = namespace(__init__=1) %}", "a namespace may not hold '__init__'"),
    ("{% include '/etc/passwd' %}", "may not include or import another file ('/etc/passwd')"),
    ("{% include ['a', 'b'] %}", "may not include or import another file ('a')"),
    ("{% import 'os' as os %}", "may not include or import another file ('os')"),
    ("{% from 'os' import system %}", "may not include or import another file ('os')"),
    ("{% extends 'base' %}", "may not include or import another file ('base')"),
]


@pytest.mark.parametrize(("source", "message"), ATTACKS)
def test_attacks_are_refused_and_named(sandbox: Sandbox, source: str, message: str) -> None:
    with pytest.raises(TemplateFailed) as caught:
        render(sandbox, "first line\n" + source)
    assert str(caught.value).startswith(f"{NAME}, line 2: ")
    assert message in str(caught.value)
    assert render(sandbox, "{{ x }}") == "text"


FAULTS = [
    ("{{ x[ }}", "unexpected '}', expected ']'"),
    ("{% for a in items %}", "Unexpected end of template"),
    ("{% nonsense %}", "Encountered unknown tag 'nonsense'"),
    ("{{ x | nonsense }}", "No filter named 'nonsense'"),
    ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
    ("{{ raise_exception('two\nlines') }}", "two lines"),
    ("{{ missing.content }}", "'missing' is undefined"),
    ("{{ x + 1 }}", 'can only concatenate str (not "int") to str'),
    ("{{ 1 / 0 }}", "division by zero"),
    ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "maximum recursion depth exceeded"),
    ("{{ " + "(" * 5000 + ")" * 5000 + " }}", "recursion"),
    ("{% for i in range(10 ** 9) %}{% endfor %}", "Range too big"),
]


@pytest.mark.parametrize(("source", "message"), FAULTS)
def test_faults_carry_the_line_and_the_message(sandbox: Sandbox, source: str, message: str) -> None:
    with pytest.raises(TemplateFailed) as caught:
        render(sandbox, "first line\n" + source)
    assert str(caught.value).startswith(NAME)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    if "recursion" not in message:
        assert ", line 2: " in str(caught.value)
    assert render(sandbox, "{{ x }}") == "text"


LIMITS = [
    ("{{ 'a' * 10 ** 9 }}", "a value of more than 8 Mi items"),
    ("{{ 9 ** (9 ** 9) }}", "a number of more than 65536 bits"),
    ("{% set n = namespace(v=3) %}{% for i in range(99) %}{% set n.v = n.v * n.v %}{% endfor %}", "65536 bits"),
    ("{% for i in range(100000) %}{{ 'a' * 1000 }}{% endfor %}", "more than 8 Mi characters of output"),
    ("{{ 'a' | center(10 ** 9) }}", "more than 256 MiB of memory"),
    ("{{ '%1000000000d' % 1 }}", "more than 256 MiB of memory"),
    ("{{ '{:>1000000000}'.format(1) }}", "more than 256 MiB of memory"),
    ("{{ ('a' * 100) | replace('', 'b' * 8000000) }}", "more than 256 MiB of memory"),
    ("{% set n = namespace(v='a') %}{% for i in range(99) %}{% set n.v = n.v ~ n.v %}{% endfor %}", "256 MiB"),
    (
        "".join(f"{{% for i{n} in range(100000) %}}" for n in range(5)) + "{% endfor %}" * 5,
        "more than 2 s",
    ),
]


@pytest.mark.skipif(sys.platform != "linux", reason="the messages of a memory limit that the system enforces")
@pytest.mark.parametrize(("source", "message"), LIMITS)
def test_limits_are_kept_and_named(sandbox: Sandbox, source: str, message: str) -> None:
    render(sandbox, "")
    with pytest.raises(TemplateFailed) as caught:
        render(sandbox, "first line\n" + source)
    assert str(caught.value).startswith(f"{NAME}, line 2: exceeded a limit: ")
    assert message in str(caught.value)
    assert render(sandbox, "{{ x }}") == "text"


def test_a_source_of_more_than_a_mebibyte_is_refused(sandbox: Sandbox) -> None:
    assert len(render(sandbox, "a" * MAX_SOURCE)) == MAX_SOURCE
    with pytest.raises(TemplateFailed, match=f"{NAME} is {MAX_SOURCE + 1} bytes long; the limit is {MAX_SOURCE}"):
        render(sandbox, "a" * (MAX_SOURCE + 1))


def test_variables_that_do_not_fit_are_refused(sandbox: Sandbox) -> None:
    assert len(sandbox.render("{{ x }}", [{"x": "a" * (8 << 20)}], NAME)[0].unwrap()) == 8 << 20
    with pytest.raises(TemplateFailed, match=f"^{NAME}.*exceeded a limit: more than (256 MiB|8 Mi)"):
        sandbox.render("{{ x }}", [{"x": "\U00100000" * (12 << 20)}], NAME)
    with pytest.raises(TemplateFailed, match=rf"^{NAME}: the conversation is \d+ bytes long; the limit is 67108864$"):
        sandbox.render("{{ x }}", [{"x": "a" * (64 << 20)}], NAME)
    assert render(sandbox, "{{ x }}") == "text"


def test_code_that_never_returns_is_killed_by_the_parent() -> None:
    sandbox = Sandbox(seconds=0.2)
    try:
        child = started(sandbox)
        child.suspend()  # stands for any code that never looks at its clock
        start = time.monotonic()
        with pytest.raises(TemplateFailed, match=f"^{NAME}: exceeded a limit: more than 0.2 s$"):
            render(sandbox, "{{ x }}")
        assert time.monotonic() - start < 5
        assert not child.is_running()
        assert render(sandbox, "{{ x }}") == "text"
    finally:
        sandbox.close()


def test_the_parent_watches_memory_where_the_system_does_not() -> None:
    sandbox = Sandbox(memory=64 << 20, capped=False)
    greedy = "{% set n = namespace(v='ab' * 1000) %}{% for i in range(12) %}{% set n.v = n.v ~ n.v %}{% endfor %}"
    endless = "".join(f"{{% for i{n} in range(100000) %}}" for n in range(5)) + "{% endfor %}" * 5
    try:
        with pytest.raises(TemplateFailed, match=f"^{NAME}: exceeded a limit: more than 64 MiB of memory$"):
            render(sandbox, greedy + "{% set a = [n.v] | map('list') | list %}" + endless)
        assert render(sandbox, "{{ x }}") == "text"
    finally:
        sandbox.close()


def test_a_child_that_dies_is_replaced() -> None:
    sandbox = Sandbox()
    try:
        child = started(sandbox)
        child.kill()
        while child.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        assert render(sandbox, "{{ x }}") == "text"
    finally:
        sandbox.close()


def test_a_child_that_is_killed_a_moment_ago_is_replaced() -> None:
    sandbox, others = Sandbox(), set(psutil.Process().children())
    try:
        for _ in range(5):
            assert render(sandbox, "{{ x }}") == "text"
            [child] = set(psutil.Process().children()) - others
            child.kill()  # not waited for: it may still look alive
    finally:
        sandbox.close()


def test_an_idle_child_uses_no_cpu_and_close_ends_it() -> None:
    sandbox = Sandbox()
    child = started(sandbox)
    before = sum(child.cpu_times()[:2])
    time.sleep(0.5)
    assert sum(child.cpu_times()[:2]) - before <= 0.02
    sandbox.close()
    assert not child.is_running()


def test_a_forgotten_sandbox_ends_its_child() -> None:
    sandbox = Sandbox()
    child = started(sandbox)
    del sandbox
    gc.collect()
    assert not child.is_running()


def test_threads_take_turns(sandbox: Sandbox) -> None:
    wrong: list[str] = []

    def work(number: int) -> None:
        for _ in range(20):
            if sandbox.render("{{ n }}", [{"n": number}], NAME)[0].unwrap() != str(number):
                wrong.append(f"thread {number}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


SCRIPT = """
    from edgeinfer.tokenizer.template import ChatTemplate
    template = ChatTemplate({"": "{{ messages[0].content }}"})
    print(template.render([{"role": "user", "content": "no main guard"}]))
"""


def run_script(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    path = folder / "script.py"
    path.write_text(textwrap.dedent(script))
    return subprocess.run(
        [sys.executable, str(path)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_script_without_a_main_guard_works_and_prints_nothing_else(tmp_path: Path) -> None:
    result = run_script(tmp_path, SCRIPT)
    assert (result.stdout, result.stderr, result.returncode) == ("no main guard\n", "", 0)


def test_the_child_ends_with_its_parent(tmp_path: Path) -> None:
    result = run_script(
        tmp_path,
        SCRIPT
        + """
    import os, psutil
    print(psutil.Process().children()[0].pid, flush=True)
    os._exit(0)  # no clean-up at all
    """,
    )
    pid = int(result.stdout.split()[-1])
    deadline = time.monotonic() + 10
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the child outlived its parent"
        time.sleep(0.05)
