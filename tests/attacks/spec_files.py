"""Spec files that mean harm."""

from __future__ import annotations

from forging import CODE, Attack, pickled, torch_file, zipped

HEAD = "tnmars: 1\nkind: linear\n"
GOOD = HEAD + "modes: {in: {i: 4}, out: {o: 5}}\nbonds: {r: 2}\ncores: {A: [i, r], B: [r, o]}\n"
NAME = "identifier|name"
COPIES = "terms: {t: {copies: 1000000000, cores: {A: [i, o]}}}"


def laughs() -> str:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    return "\n".join(rows + [f"a{at}: &a{at} [{', '.join([f'*a{at - 1}'] * 9)}]" for at in range(1, 40)])


SPECS: dict[str, tuple[str | bytes, str]] = {
    "tag_apply": (f"{HEAD}name: !!python/object/apply:os.system ['touch canary']\n", "tag"),
    "tag_new": (f"{HEAD}name: !!python/object/new:subprocess.Popen [[touch, canary]]\n", "tag"),
    "tag_module": (f"{HEAD}name: !!python/module:canary ''\n", "tag"),
    "tag_name": (f"{HEAD}name: !!python/name:canary.x ''\n", "tag"),
    "tag_of_the_file_itself": (f"!!python/object/apply:os.system ['touch canary']\n{GOOD}", "tag|not valid YAML"),
    "tag_in_an_origin": (f"{GOOD}origin: {{sizes: !!python/object/apply:eval ['{len(CODE)}']}}\n", "tag"),
    "tag_by_directive": (
        f"%TAG !p! tag:yaml.org,2002:python/\n---\n{HEAD}name: !p!object/apply:os.system [touch canary]\n",
        "tag",
    ),
    "pickle": (pickled(), "not UTF-8|not printable"),
    "torch_save": (torch_file(), "not UTF-8|not printable"),
    "zip": (zipped("spec.yaml", GOOD.encode()), "not UTF-8|not printable"),
    "laughs": (laughs(), "anchor|alias"),
    "alias_loop": ("a: &a [*a]\n", "anchor|alias"),
    "merge_loop": ("a: &a\n  <<: *a\n", "merge|anchor|alias"),
    "duplicate_keys": (f"{GOOD}cores: {{A: [i, o]}}\n", "twice|again|already"),
    "duplicate_cores": (f"{HEAD}modes: {{in: {{i: 4}}, out: {{o: 5}}}}\ncores: {{A: [i, o], A: [i]}}\n", "twice|again"),
    "second_document": (f"{GOOD}---\n{GOOD}", "second document"),
    "brackets": ("[" * 900_000, "levels deep"),
    "indents": ("".join(f"{' ' * at}a:\n" for at in range(1300)), "levels deep"),
    "many_nodes": ("a: [" + "x," * 400_000 + "x]", "nodes"),
    "many_bytes": ("# " + "x" * 16_000_000, "bytes"),
    "code_as_core": (GOOD.replace("A:", f'"{CODE}":'), NAME),
    "code_as_bond": (GOOD.replace("{r: 2}", f'{{"{CODE}": 2}}'), NAME),
    "code_as_mode": (GOOD.replace("{i: 4}", f'{{"{CODE}": 4}}'), NAME),
    "code_as_size": (GOOD.replace("r: 2", f'r: "{CODE}"'), "size|param|number"),
    "power_as_size": (GOOD.replace("r: 2", "r: 9**9**9"), "size|param|number"),
    "code_as_option": (f'{GOOD}options: {{bias: "{CODE}"}}\n', "bias"),
    "code_as_family": (f"{HEAD}family: os.system\nin: [4]\nout: [5]\nrank: 2\n", "family"),
    "method_as_family": (f"{HEAD}family: __init__\nin: [4]\nout: [5]\nrank: 2\n", "family"),
    "path_as_core": (GOOD.replace("A:", '"../../canary":'), NAME),
    "newline_as_core": (GOOD.replace("A:", '"A\\nimport canary":'), NAME),
    "look_alike_letters": (GOOD.replace("A: [i, r]", "ａ: [i, r]"), NAME),
    "escape_codes": (GOOD.replace("A:", '"\\e[2J\\e]0;x\\a":'), NAME),
    "huge_size": (GOOD.replace("r: 2", "r: 2147483648"), "2,?147,?483,?64|large|size"),
    "digits": (GOOD.replace("r: 2", "r: " + "9" * 5000), "large|size|number"),
    "many_copies": (f"{HEAD}modes: {{in: {{i: 4}}, out: {{o: 5}}}}\n{COPIES}\n", "copies"),
    "many_axes": (f"{HEAD}family: tt\nin: [{'1, ' * 60_000}1]\nout: [5]\nrank: 1\n", "0 to 10,000"),
    "nul": (GOOD.replace("r: 2", "r: 2\0"), "not printable"),
    "utf16": (GOOD.encode("utf-16"), "not UTF-8"),
    "directives": ("".join(f"%TAG !a{at}! b\n" for at in range(50_000)) + "--- a\n", "start with '%'"),
}


def attacks() -> list[Attack]:
    return [
        Attack(name, "spec", data.encode() if isinstance(data, str) else data, says)
        for name, (data, says) in SPECS.items()
    ]
