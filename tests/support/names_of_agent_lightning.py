"""The public names of Agent Lightning 0.3: of the package itself, and of its modules."""

ROOT = {
    "adapters": "Adapter LlmProxyTraceToTriplet OtelTraceAdapter TraceAdapter TraceToMessages TraceToTripletBase "
    "TracerTraceToTriplet",
    "algorithms": "APO Algorithm Baseline FastAlgorithm VERL algo",
    "first version": "AgentLightningClient AgentLightningServer DevTaskLoader",
    "command line": "lightning_cli",
    "emitters": "emit_annotation emit_exception emit_message emit_object emit_reward find_final_reward "
    "find_reward_spans get_message_value get_object_value get_reward_value get_rewards_from_span is_reward_span "
    "operation reward",
    "variables": "LightningEnvVar resolve_bool_env_var resolve_int_env_var resolve_str_env_var",
    "execution": "ClientServerExecutionStrategy ExecutionEvent ExecutionStrategy MultiprocessingEvent "
    "SharedMemoryExecutionStrategy ThreadingEvent",
    "agents": "LitAgent llm_rollout prompt_rollout rollout",
    "proxy": "LLMProxy",
    "logs": "configure_logger setup_logging setup_module_logging",
    "runners": "LegacyAgentRunner LitAgentRunner Runner",
    "stores": "CollectionBasedLightningStore InMemoryLightningStore LightningStore LightningStoreCapabilities "
    "LightningStoreClient LightningStoreServer LightningStoreStatistics LightningStoreThreaded",
    "tracers": "AgentOpsTracer DummyTracer OtelTracer Tracer clear_active_tracer get_active_tracer set_active_tracer",
    "trainer": "Trainer build_component",
    "rollouts": "Attempt AttemptStatus AttemptedRollout Dataset EnqueueRolloutRequest FilterField FilterOptions "
    "GenericResponse Hook PaginatedResult ParallelWorkerBase Rollout RolloutConfig RolloutLegacy RolloutMode "
    "RolloutRawResult RolloutRawResultLegacy RolloutStatus SortOptions Task TaskIfAny TaskInput Triplet Worker "
    "WorkerStatus",
    "resources": "LLM NamedResources PromptTemplate ProxyLLM Resource ResourceUnion ResourcesUpdate",
    "spans": "AttributeValue Attributes Event Link OtelResource Span SpanAttributeNames SpanContext SpanCoreFields "
    "SpanLike SpanNames SpanRecordingContext StatusCode TraceState TraceStatus",
}
MODULES = {
    "adapter": f"{ROOT['adapters']} RewardMatchPolicy TraceTree",
    "algorithm": f"{ROOT['algorithms']} with_llm_proxy with_store",
    "emitter": ROOT["emitters"],
    "env_var": ROOT["variables"],
    "execution": ROOT["execution"],
    "instrumentation": "instrument_all uninstrument_all",
    "litagent": ROOT["agents"],
    "llm_proxy": "LLMProxy",
    "logging": "configure_logger setup setup_module",
    "reward": "emit_reward find_final_reward find_reward_spans get_reward_value get_rewards_from_span is_reward_span "
    "reward",
    "runner": ROOT["runners"],
    "semconv": "AGL_ANNOTATION AGL_EXCEPTION AGL_MESSAGE AGL_OBJECT AGL_OPERATION AGL_REWARD AGL_VIRTUAL "
    "LightningResourceAttributes LightningSpanAttributes LinkAttributes LinkPydanticModel RewardAttributes "
    "RewardPydanticModel",
    "store": f"{ROOT['stores']} MongoLightningStore",
    "tracer": f"{ROOT['tracers']} WeaveTracer",
    "trainer": ROOT["trainer"],
    "types": f"{ROOT['rollouts']} {ROOT['resources']} {ROOT['spans']}",
    "verl": "AgentDataset AgentLightningTrainer AgentModeDaemon LoadedDataset TaskRunner run_ppo",
}
_REPLACED = """AgentLightningClient AgentLightningServer DevTaskLoader lightning_cli
ClientServerExecutionStrategy ExecutionEvent ExecutionStrategy
MultiprocessingEvent SharedMemoryExecutionStrategy ThreadingEvent LLMProxy LegacyAgentRunner
CollectionBasedLightningStore LightningStoreThreaded DummyTracer Tracer clear_active_tracer get_active_tracer
set_active_tracer build_component FilterField FilterOptions GenericResponse ParallelWorkerBase RolloutLegacy
RolloutRawResultLegacy SortOptions Task TaskIfAny Event Link OtelResource SpanContext SpanCoreFields
SpanRecordingContext TraceState TraceStatus RewardMatchPolicy TraceTree with_llm_proxy with_store
instrument_all uninstrument_all AGL_VIRTUAL LightningResourceAttributes LightningSpanAttributes LinkAttributes
LinkPydanticModel RewardAttributes MongoLightningStore WeaveTracer AgentDataset AgentLightningTrainer
AgentModeDaemon LoadedDataset TaskRunner run_ppo"""
REPLACED = frozenset(_REPLACED.split())
"""Names that something else in Leyden replaces. All others can be used."""


def root_names() -> list[str]:
    return sorted(name for names in ROOT.values() for name in names.split())
