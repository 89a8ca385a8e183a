"""Every public name of Agent Lightning 0.3 can be used, or raises one line that names what replaces it."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from names_of_agent_lightning import MODULES, REPLACED, root_names

import leyden.core.agent_lightning as agl
from leyden.core.agent_lightning.replaced import MEMBERS, ReplacedMember, ReplacedName
from leyden.core.errors import UsageError

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs/migration.md"
OF_MODULES = [(module, name) for module, names in MODULES.items() for name in names.split()]


def test_the_list_is_that_of_the_wheel() -> None:
    assert len(root_names()) == len(set(root_names())) == 116


@pytest.mark.parametrize("name", root_names())
def test_each_name_of_the_package_works_or_names_what_replaces_it(name: str) -> None:
    if name not in REPLACED:
        assert getattr(agl, name) is not None
        assert name in agl.__all__
        return
    with pytest.raises(ReplacedName, match=f"^{name} of Agent Lightning 0.3 is replaced: ") as raised:
        getattr(agl, name)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("module", "name"), OF_MODULES)
def test_each_name_of_a_module_works_or_names_what_replaces_it(module: str, name: str) -> None:
    home = import_module(f"leyden.core.agent_lightning.{module}")
    if name not in REPLACED:
        assert getattr(home, name) is not None
        return
    with pytest.raises(ReplacedName, match=f"^{name} of Agent Lightning 0.3 is replaced: "):
        exec(f"from leyden.core.agent_lightning.{module} import {name}")


def test_the_package_has_no_names_but_those_of_the_original() -> None:
    assert sorted(agl.__all__) == sorted(set(root_names()) - REPLACED)
    assert dir(agl) == sorted(agl.__all__)


def test_modules_are_attributes_and_that_of_rewards_stays_the_decorator() -> None:
    assert agl.store.InMemoryLightningStore is agl.InMemoryLightningStore
    from leyden.core.agent_lightning.reward import find_final_reward

    assert find_final_reward is agl.find_final_reward
    assert agl.reward(lambda: 0.5)() == 0.5
    assert sorted({*agl.MODULES, "reward"}) == sorted(MODULES)


def test_a_name_that_the_original_does_not_have_is_an_attribute_error() -> None:
    assert not hasattr(agl, "Lightening")
    assert not hasattr(import_module("leyden.core.agent_lightning.types"), "Lightening")


def test_a_replaced_name_is_an_error_of_the_user_and_of_the_import() -> None:
    with pytest.raises(ImportError, match="leyden gateway"):
        exec("from leyden.core.agent_lightning import LLMProxy")
    assert issubclass(ReplacedName, UsageError)


MADE: dict[str, Any] = {
    "OtelTracer": agl.OtelTracer,
    "LitAgentRunner": agl.LitAgentRunner,
    "LitAgent": agl.LitAgent,
    "Algorithm": agl.Algorithm,
    "Trainer": agl.Trainer,
    "TracerTraceToTriplet": agl.TracerTraceToTriplet,
    "LightningStoreServer": lambda: agl.LightningStoreServer(agl.InMemoryLightningStore()),
}


@pytest.mark.parametrize(("kind", "member"), [(kind, name) for kind, names in MEMBERS.items() for name in names])
def test_a_member_of_a_class_names_what_replaces_it(kind: str, member: str) -> None:
    made = MADE[kind]()
    assert not hasattr(made, member)
    with pytest.raises(ReplacedMember, match=f"^{kind}.{member} of Agent Lightning 0.3 is replaced: ") as raised:
        getattr(made, member)
    assert "\n" not in str(raised.value)
    with pytest.raises(AttributeError, match="has no attribute 'lightening'"):
        made.lightening  # noqa: B018


def test_a_subclass_has_the_replaced_members_of_its_class() -> None:
    class Mine(agl.LitAgent[str]):
        pass

    with pytest.raises(ReplacedMember, match=r"^LitAgent.get_trainer of Agent Lightning 0.3 is replaced: give"):
        Mine().get_trainer()
    with pytest.raises(ReplacedMember, match=r"^OtelTracer.trace_context of Agent Lightning 0.3 is replaced: the gate"):
        agl.AgentOpsTracer().trace_context()
    with pytest.raises(ReplacedName, match=r"^AgentOpsTracer\(agentops_managed=\)"):
        agl.AgentOpsTracer(agentops_managed=True)


def test_the_page_of_the_migration_has_every_name() -> None:
    page = PAGE.read_text()
    missing = [name for name in {*root_names(), *(name for _, name in OF_MODULES)} if f"`{name}`" not in page]
    assert sorted(missing) == []
