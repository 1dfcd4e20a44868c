"""Files of models and checkpoints that mean harm. Where the bytes are ours, the digest is right: no digest helps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from forging import (
    CODE,
    Attack,
    about_of,
    adapter_bytes,
    changed,
    checkpoint_bytes,
    deep,
    form,
    layer,
    model_bytes,
    pickled,
    sealed,
    torch_file,
    zipped,
)

from tnmars.plan.cost import CostModel
from tnmars.plan.layout import Weighing
from tnmars.program.choice import all_forms
from tnmars.program.codec import form_to_json
from tnmars.store.layer import graph_of

HEADS = ("show", "plan", "diff", "diff the other way")
"""The readers that look at the graphs in the header alone."""
NOT_OURS = "not a file that tnmars wrote|damaged|not UTF-8|not printable|not valid YAML|not a table|bytes"


def strangers() -> Iterator[tuple[str, bytes, str]]:
    """Files of other kinds under the name of a model."""
    good = model_bytes()
    yield "pickle", pickled(), NOT_OURS
    yield "torch_save", torch_file(), NOT_OURS
    yield "zip_bomb", zipped("a", bytes(50_000_000)), NOT_OURS
    yield "empty", b"", NOT_OURS + "|empty"
    yield "zeros", bytes(100_000), NOT_OURS
    yield "long_header", (2**62).to_bytes(8, "little") + good[8:], NOT_OURS
    yield "header_longer_than_the_file", (len(good) + 1).to_bytes(8, "little") + good[8:], NOT_OURS
    yield "no_json", sealed("{", ""), NOT_OURS
    yield "deep_table", sealed({"version": 1}, f'"a":{deep(200_000)}'), NOT_OURS
    yield "deep_header", sealed(deep(200_000), ""), NOT_OURS
    yield "bomb_of_lists", sealed("[" + "[]," * 200_000 + "[]]", ""), NOT_OURS


def lies() -> Iterator[tuple[str, bytes, str]]:
    """Tables of tensors that do not tell the truth."""
    about = about_of(model_bytes())

    def table(**entries: Any) -> bytes:
        return sealed(about, entries, bytes(64))

    def entry(shape: Any, offsets: Any, dtype: Any = "F32") -> dict[str, Any]:
        return {"dtype": dtype, "shape": shape, "data_offsets": offsets}

    yield "overlap", table(a=entry([8], [0, 32]), b=entry([8], [16, 48])), "overlap"
    yield "same_bytes_twice", table(a=entry([16], [0, 64]), b=entry([16], [0, 64])), "overlap"
    yield "beyond_the_end", table(a=entry([32], [0, 128])), "shape"
    yield "before_the_start", table(a=entry([16], [-64, 0])), "shape"
    yield "backwards", table(a=entry([0], [8, 0])), "shape"
    yield "huge_shape", table(a=entry([2**40, 2**40], [0, 64])), "shape"
    yield "product_that_wraps", table(a=entry([2**62, 4], [0, 64])), "shape"
    yield "negative_shape", table(a=entry([-4, -4], [0, 64])), "shape"
    yield "many_axes", table(a=entry([1] * 1000 + [16], [0, 64])), "no such tensor"
    yield "shape_of_floats", table(a=entry([4.0, 4.0], [0, 64])), "not a file that tnmars wrote"
    yield "type_of_code", table(a=entry([16], [0, 64], CODE)), "not a file that tnmars wrote"
    yield "extra_keyword", table(a={**entry([16], [0, 64]), "values": 1}), "not a file that tnmars wrote"
    yield "no_table", table(a=[]), "not a file that tnmars wrote"
    twice = json.dumps(entry([16], [0, 64]))
    yield "duplicate_tensors", sealed(about, f'"a":{twice},"a":{twice}', bytes(64)), "twice"
    yield "duplicate_keys", sealed('{"version":1,' + json.dumps(about)[1:], ""), "twice"
    yield "shared_with_nothing", sealed({**about, "shared": {"a": "b"}}, ""), "not a file that tnmars wrote"
    yield "shared_in_a_circle", sealed({**about, "shared": {"a": "b", "b": "a"}}, ""), "not a file that tnmars wrote"
    yield "version_of_the_future", sealed({**about, "version": 99}, ""), "version 99"
    yield "version_of_code", sealed({**about, "version": CODE}, ""), "version"
    good = model_bytes()
    yield "flipped_bit", good[:-1] + bytes([good[-1] ^ 1]), "digest"
    yield "bytes_behind_the_end", good + b"\0" * 8, "bytes"


def forged() -> Iterator[tuple[str, bytes, str]]:
    """Headers that say something else about a layer or its graph."""
    good = model_bytes()

    def with_layer(**entries: Any) -> bytes:
        return changed(good, lambda header, _: layer(header).update(entries))

    def with_spec(old: str, new: str) -> bytes:
        text = layer(about_of(good))["spec"]
        assert old in text
        return with_layer(spec=text.replace(old, new))

    yield "spec_with_a_tag", with_layer(spec="!!python/object/apply:os.system ['touch canary']"), "tag|not a table"
    yield "spec_with_code", with_spec("G1:", f'"{CODE}":'), "identifier|name"
    yield "spec_of_another_shape", with_spec("in: {i1: 3", "in: {i1: 6000"), r"6000|6,000"
    yield "spec_that_is_a_number", with_layer(spec=7), "spec"
    yield "spec_that_is_large", with_layer(spec="# " + "x" * 16_000_000), "bytes"
    yield "no_layers", changed(good, lambda header, _: header.update(layers=3)), "layers|damaged"
    twice = changed(good, lambda header, _: header["layers"].append(layer(header)))
    yield "layer_twice", twice, "twice"
    yield "layer_without_a_name", with_layer(names=[]), "layers|damaged"
    yield "layer_of_code", with_layer(names=[CODE]), "not in the model|no such tensor"
    yield "layer_outside", with_layer(names=["../../canary"]), "not in the model|no such tensor"
    yield "unknown_selector", with_layer(selector={"name": "os.system"}), "selector"
    yield "selector_with_code", with_layer(selector={"name": "mars", "__class__": CODE}), "selector"
    yield "selector_with_nan", with_layer(selector={"name": "mars", "pi": float("nan")}), "pi|selector"
    yield "gates_without_selector", with_layer(selector=None), "selector"
    yield "huge_batch", with_layer(batch=10**30), "batch"
    yield "batch_of_zero", with_layer(batch=0), "batch"
    yield "image_of_zero", with_layer(image=0), "image"
    yield "search_of_code", with_layer(optimizer="eval"), "optimizer"
    yield "rule_of_code", with_layer(init=CODE), "init|rule"
    yield "dtype_of_code", with_layer(dtype="torch.load"), "dtype"
    yield "deep_origin", with_layer(origin=json.loads(deep(300, '{"a":', "}").replace(":}", ":1}"))), "origin|levels"
    yield "nan_cost_model", with_layer(cost_model={"peak": float("nan")}), "peak"
    yield "zero_cost_model", with_layer(cost_model={"peak": 0}), "peak"


def plans() -> Iterator[tuple[str, bytes, str]]:
    """Plans that disagree with their graph, or would write code of their own."""
    good = model_bytes()

    def with_form(change: Any) -> bytes:
        return changed(good, lambda header, _: change(form(header)))

    def with_plans(**entries: Any) -> bytes:
        return changed(good, lambda header, _: layer(header)["plans"].update(entries))

    def instructions(one: dict[str, Any]) -> list[Any]:
        found: list[Any] = one["program"]["fold"]
        return found

    yield "version", with_plans(version=2), "version"
    yield "no_table", with_plans(train=[]), "table"
    yield "batch_of_code", with_plans(train={CODE: {}}), "not a batch"
    yield "unknown_key", with_plans(eval={}), "not known"
    yield "name_of_code", with_form(lambda one: one.update(name=CODE)), "name"
    yield "nan_cost", with_form(lambda one: one.update(cost=float("nan"))), "cost"
    yield "unknown_instruction", with_form(lambda one: instructions(one)[0].update(op="exec")), "not known"
    yield "instruction_with_code", with_form(lambda one: instructions(one)[0].update(cores=[CODE])), "plan"
    yield "instruction_twice", with_form(lambda one: instructions(one).insert(0, instructions(one)[0])), "plan"
    yield "instruction_left_out", with_form(lambda one: instructions(one).pop()), "plan"
    yield "instructions_backwards", with_form(lambda one: instructions(one).reverse()), "plan"
    yield "other_core", with_form(lambda one: instructions(one)[0].update(cores=["G2"])), "plan"
    yield "code_in_an_axis", with_form(lambda one: instructions(one)[0].update(axes=[[CODE]])), "plan"
    yield "frame_of_code", with_form(lambda one: one["frame"].update(dense="os.system")), "frame"
    yield "huge_chunk", with_form(lambda one: one.update(chunk=10**30)), "large|chunk"
    dense = next(
        one for one in all_forms(graph_of(layer(about_of(good))), 16, Weighing(CostModel())) if one.frame.dense
    )
    in_chunks = form_to_json(replace(dense, chunk=4, is_planned=True))
    yield "dense_in_chunks", with_form(lambda one: one.update(in_chunks)), "chunk of 4"
    yield "name_with_a_line", with_form(lambda one: instructions(one)[0].update(out="v0\nimport canary")), "plan"
    larger = layer(about_of(good))["spec"].replace("r1: 4", "r1: 5")

    def widen(header: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        layer(header)["spec"] = larger
        for key, axis in (("fc.cores.G1", 2), ("fc.cores.G2", 0), ("fc.gates.r1", 0)):
            tensors[key] = torch.cat([tensors[key], tensors[key].narrow(axis, 0, 1)], axis)

    yield "of_another_graph", changed(good, widen), "plan"


def checkpoints() -> Iterator[tuple[str, bytes, str]]:
    """Training checkpoints: what surrounds the model."""
    good = checkpoint_bytes()

    def with_header(**entries: Any) -> bytes:
        return changed(good, lambda header, _: header.update(entries))

    def generator(name: str) -> bytes:
        def change(header: dict[str, Any], _: Any) -> None:
            header["random"]["numpy"]["bit_generator"] = name

        return changed(good, change)

    yield "model_as_checkpoint", model_bytes(), "not a training checkpoint"
    yield "generator_of_code", generator("__class__"), "random states"
    yield "generator_of_another_module", generator("seed"), "random states"
    yield "random_state_of_text", with_header(random={"python": CODE, "numpy": CODE}), "random states"
    yield "no_random_state", with_header(random=None), "random states"
    yield "deep_position", with_header(position=json.loads(deep(300))), "levels"
    yield "key_that_is_a_list", with_header(extra={"$table": [[[], 1]]}), "data that tnmars does not write"
    yield "schedule_of_code", with_header(schedule=CODE), "schedule"
    yield "schedule_backwards", with_header(schedule={"steps": -1}), "schedule"
    yield "optimizer_of_code", with_header(optimizer=CODE), "optimizer"
    yield "scheduler_of_code", with_header(lr_scheduler={"kind": CODE, "state": {}}), "lr_scheduler"
    noise = changed(good, lambda _, tensors: tensors.update({"random.torch": torch.zeros(3, dtype=torch.uint8)}))
    yield "short_generator", noise, "random states"


def adapters() -> Iterator[tuple[str, bytes, str]]:
    """Files of adapters."""
    good = adapter_bytes()

    def with_entry(**entries: Any) -> bytes:
        return changed(good, lambda header, _: header["adapters"][0].update(entries))

    def short(_: Any, tensors: dict[str, torch.Tensor]) -> None:
        tensors.popitem()

    yield "pickle", pickled(), NOT_OURS
    yield "torch_save", torch_file(), NOT_OURS
    yield "flipped_bit", good[:-1] + bytes([good[-1] ^ 1]), "digest"
    yield "model", model_bytes(), "no adapters"
    yield "no_list", changed(good, lambda header, _: header.update(adapters=CODE)), "no adapters"
    yield "scale_of_code", with_entry(scale=CODE), "no adapters"
    yield "name_of_code", with_entry(names=[CODE]), "not in the model"
    yield "name_of_another", with_entry(names=["fc.weight"]), "not in the model"
    yield "spec_with_a_tag", with_entry(spec="!!python/object/apply:os.system ['touch canary']"), "tag|not a table"
    yield "spec_that_is_a_number", with_entry(spec=7), "spec"
    yield "spec_that_is_large", with_entry(spec="# " + "x" * 16_000_000), "bytes"
    yield "unknown_selector", with_entry(selector={"name": "os.system"}), "selector"
    yield "huge_batch", with_entry(batch=10**30), "batch"
    yield "fewer_tensors", changed(good, short), "tensor"


def attacks() -> list[Attack]:
    found = [Attack(f"stranger_{name}", "model", data, says) for name, data, says in strangers()]
    found += [Attack(f"table_{name}", "model", data, says, HEADS) for name, data, says in lies()]
    seen = ("spec_with_a_tag", "spec_with_code", "spec_that_is_large", "spec_that_is_a_number", "no_layers")
    found += [
        Attack(f"header_{name}", "model", data, says, () if name in (*seen, "layer_without_a_name") else HEADS)
        for name, data, says in forged()
    ]
    found += [Attack(f"plan_{name}", "model", data, says, HEADS) for name, data, says in plans()]
    found += [Attack(name, "checkpoint", data, says) for name, data, says in checkpoints()]
    found += [Attack(f"adapters_{name}", "adapters", data, says) for name, data, says in adapters()]

    def blind(_: Any, tensors: dict[str, torch.Tensor]) -> None:
        tensors["fc.gates.r1"] = tensors["fc.gates.r1"] * float("nan")

    reading = (*HEADS, "load_into", "report before", "report after")  # a gate is judged where it is used
    found.append(Attack("gates_of_nan", "model", changed(model_bytes(), blind), "gates|logits", reading))
    return found
