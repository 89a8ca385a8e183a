import pytest

from leyden.core.data.resources import LLM, NamedResources, PromptTemplate
from leyden.core.errors import UsageError
from leyden.core.store.memory import MemoryStore
from leyden.core.trainer.context.resource_versions import ResourceVersions, version_id

INITIAL: NamedResources = {
    "main_llm": LLM(endpoint="https://provider/v1", model="m", api_key="sk-secret", replicas=("https://other/v1",)),
    "prompt": PromptTemplate(template="{q}"),
}


def versions(store: MemoryStore, url: str = "http://gateway") -> ResourceVersions:
    def served(given: NamedResources) -> NamedResources:
        return {name: LLM(endpoint=url, model="m") if isinstance(one, LLM) else one for name, one in given.items()}

    return ResourceVersions(store, INITIAL, served)


async def test_equal_resources_have_one_id_in_every_session() -> None:
    store = MemoryStore()
    first, second = versions(store), versions(store, "http://gateway-of-another-session")
    one = await first.publish(first.changed({"prompt": PromptTemplate(template="better {q}")}))
    other = await second.add(second.changed({"prompt": PromptTemplate(template="better {q}")}))
    assert one == other != second.resources_id
    stored = await store.get_resources_by_id(one)
    assert stored is not None and stored.version == 1
    assert stored.resources["prompt"] == PromptTemplate(template="better {q}")
    assert stored.resources["main_llm"] == LLM(endpoint="http://gateway", model="m")


async def test_a_version_that_is_only_added_is_not_published() -> None:
    known = versions(MemoryStore())
    before = known.resources_id
    added = await known.add(known.changed({"prompt": PromptTemplate(template="tried {q}")}))
    assert (known.resources_id, known.resources["prompt"]) == (before, PromptTemplate(template="{q}"))
    assert await known.publish(known.changed({"prompt": PromptTemplate(template="tried {q}")})) == added
    assert known.resources["prompt"] == PromptTemplate(template="tried {q}")


def test_the_record_has_no_key_and_no_endpoint() -> None:
    recorded = versions(MemoryStore()).resources["main_llm"]
    assert recorded == LLM(endpoint="", model="m")


def test_the_engine_of_a_prompt_is_a_part_of_its_version() -> None:
    plain, jinja = (PromptTemplate(template="x", engine=engine) for engine in ("f-string", "jinja"))
    assert version_id({"p": plain}) != version_id({"p": jinja})
    assert version_id({"a": plain, "b": jinja}) == version_id({"b": jinja, "a": plain})


def test_a_prompt_that_cannot_be_a_file_is_refused() -> None:
    with pytest.raises(UsageError, match=r"the name '\.\./x' of a prompt"):
        versions(MemoryStore()).changed({"../x": PromptTemplate(template="")})
