-- A store as version 1 left it: a running attempt with two spans, a rollout that waits, resources, a worker.
BEGIN TRANSACTION;
CREATE TABLE attempts (
	id INTEGER NOT NULL,
	rollout_id TEXT NOT NULL,
	attempt_id TEXT NOT NULL,
	sequence_id INTEGER NOT NULL,
	start_time FLOAT NOT NULL,
	end_time FLOAT,
	status TEXT NOT NULL,
	worker_id TEXT,
	last_heartbeat_time FLOAT,
	metadata BLOB NOT NULL,
	PRIMARY KEY (id),
	UNIQUE (rollout_id, attempt_id),
	UNIQUE (rollout_id, sequence_id)
);
INSERT INTO "attempts" VALUES(1,'ro-1','ro-1-a1',1,1.79531155298243308071e+09,NULL,'running',NULL,1.79531155299462580679e+09,X'80');
CREATE TABLE queue (
	position INTEGER NOT NULL,
	rollout_id TEXT NOT NULL,
	PRIMARY KEY (position),
	UNIQUE (rollout_id)
);
INSERT INTO "queue" VALUES(1,'waiting');
CREATE TABLE resources (
	id INTEGER NOT NULL,
	resources_id TEXT NOT NULL,
	version INTEGER NOT NULL,
	current BOOLEAN NOT NULL,
	create_time FLOAT NOT NULL,
	update_time FLOAT NOT NULL,
	resources BLOB NOT NULL,
	PRIMARY KEY (id),
	UNIQUE (resources_id, version)
);
INSERT INTO "resources" VALUES(1,'prompts',1,1,1.79531155302701973916e+09,1.79531155302701973916e+09,X'80');
CREATE TABLE rollouts (
	id INTEGER NOT NULL,
	rollout_id TEXT NOT NULL,
	input BLOB NOT NULL,
	start_time FLOAT NOT NULL,
	end_time FLOAT,
	mode TEXT,
	resources_id TEXT,
	resources_version INTEGER,
	status TEXT NOT NULL,
	config BLOB NOT NULL,
	metadata BLOB NOT NULL,
	attempts INTEGER NOT NULL,
	span_counter INTEGER NOT NULL,
	deadline FLOAT,
	PRIMARY KEY (id),
	UNIQUE (rollout_id)
);
INSERT INTO "rollouts" VALUES(1,'ro-1',X'81A87175657374696F6E01',1.79531155296103167532e+09,NULL,NULL,NULL,NULL,'running',X'84AF74696D656F75745F7365636F6E6473C0B4756E726573706F6E736976655F7365636F6E6473C0AC6D61785F617474656D70747301AF72657472795F636F6E646974696F6E90',X'80',1,0,NULL);
INSERT INTO "rollouts" VALUES(2,'waiting',X'81A87175657374696F6E02',1.79531155302136802677e+09,NULL,NULL,NULL,NULL,'queuing',X'84AF74696D656F75745F7365636F6E6473C0B4756E726573706F6E736976655F7365636F6E6473C0AC6D61785F617474656D70747301AF72657472795F636F6E646974696F6E90',X'80',0,0,NULL);
CREATE TABLE spans (
	id INTEGER NOT NULL,
	rollout_id TEXT NOT NULL,
	attempt_id TEXT NOT NULL,
	sequence_id INTEGER NOT NULL,
	trace_id TEXT NOT NULL,
	span_id TEXT NOT NULL,
	parent_id TEXT,
	name TEXT NOT NULL,
	start_time FLOAT NOT NULL,
	end_time FLOAT,
	body BLOB NOT NULL,
	PRIMARY KEY (id),
	UNIQUE (rollout_id, span_id, attempt_id)
);
INSERT INTO "spans" VALUES(1,'ro-1','ro-1-a1',1,'00000000000000000000000000000001','000000000000000a',NULL,'chat',1.5,2.5,X'9782A4636F6465A5756E736574AB6465736372697074696F6EC080909080C0C2');
INSERT INTO "spans" VALUES(2,'ro-1','ro-1-a1',2,'00000000000000000000000000000001','000000000000000b',NULL,'chat',1.5,2.5,X'9782A4636F6465A5756E736574AB6465736372697074696F6EC080909080C0C2');
CREATE TABLE workers (
	id INTEGER NOT NULL,
	worker_id TEXT NOT NULL,
	status TEXT NOT NULL,
	heartbeat_stats BLOB NOT NULL,
	last_heartbeat_time FLOAT,
	last_dequeue_time FLOAT,
	last_busy_time FLOAT,
	last_idle_time FLOAT,
	current_rollout_id TEXT,
	current_attempt_id TEXT,
	PRIMARY KEY (id),
	UNIQUE (worker_id)
);
INSERT INTO "workers" VALUES(1,'w','unknown',X'81A363707501',1.79531155303768372535e+09,NULL,NULL,NULL,NULL,NULL);
CREATE INDEX ix_rollouts_status ON rollouts (status);
CREATE INDEX rollouts_by_deadline ON rollouts (deadline) WHERE deadline IS NOT NULL;
CREATE INDEX attempts_of_worker ON attempts (worker_id, status);
CREATE INDEX spans_in_order ON spans (rollout_id, sequence_id);
COMMIT;
PRAGMA user_version=1;
