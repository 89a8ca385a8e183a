import pytest

from leyden.core.data.route import POLICY, PROVIDER, Route, first_fitting, parse_route, parse_routes
from leyden.core.errors import UsageError


def where(
    routes: list[Route],
    model: str | None = "gpt-4",
    agent: str = "solver",
    host: str = "api.x.com",
    node: str = "",
) -> str:
    return first_fitting(routes, host=host, path="/v1/chat/completions", model=model, agent=agent, node=node)


def test_a_call_that_no_route_fits_goes_to_the_policy() -> None:
    assert where([]) == POLICY
    assert where([Route(agent="judge", to=PROVIDER)]) == POLICY


def test_the_first_route_that_fits_decides() -> None:
    routes = [Route(agent="judge*", to=PROVIDER), Route(agent="*", model="gpt-*", to="big"), Route(to="small")]
    assert where(routes, agent="judge 2") == PROVIDER
    assert where(routes) == "big"
    assert where(routes, model="o9") == "small"


@pytest.mark.parametrize(
    ("route", "fits"),
    [
        (Route(host="*.x.com", to="a"), True),
        (Route(host="x.com", to="a"), False),
        (Route(path="/v1/*", to="a"), True),
        (Route(path="/v1/messages", to="a"), False),
        (Route(model="GPT-4", to="a"), False),
        (Route(host="api.x.com", agent="sol?er", model="gpt-[45]", to="a"), True),
    ],
)
def test_all_patterns_must_fit(route: Route, fits: bool) -> None:
    assert (where([route]) == "a") is fits


def test_a_node_of_the_agents_graph_has_a_pattern_of_its_own() -> None:
    routes = [Route(agent="solver", node="plan*", to="planner"), Route(to="rest")]
    assert where(routes, node="planner") == "planner"
    assert where(routes) == where(routes, node="planner", agent="other") == "rest"
    assert [route.fits_all for route in routes] == [False, True]


def test_a_call_whose_model_is_not_known_is_claimed_where_a_route_asks_for_it() -> None:
    assert where([Route(model="gpt-4", to=PROVIDER), Route(to=PROVIDER)], model=None) == POLICY
    assert where([Route(model="gpt-4", agent="judge", to="big"), Route(to=PROVIDER)], model=None) == PROVIDER


def test_text_becomes_routes() -> None:
    assert parse_routes(["agent=judge,to=provider", " host = API.Anthropic.com , to=provider", "to=big"]) == (
        Route(agent="judge", to=PROVIDER),
        Route(host="api.anthropic.com", to=PROVIDER),
        Route(to="big"),
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("agnt=judge,to=provider", "unknown key 'agnt'; a route has host, path, model, agent, node, to"),
        ("agent=judge", "has no destination"),
        ("agent=judge,to=", "gives 'to' no value"),
        ("agent=a,agent=b,to=provider", "gives 'agent' twice"),
        ("judge,to=provider", "'judge' is not of the form key=value"),
        ("", "is not of the form"),
    ],
)
def test_bad_text_is_named(text: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        parse_route(text)
