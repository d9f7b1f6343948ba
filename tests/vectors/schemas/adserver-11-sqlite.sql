CREATE TABLE access_grants (
	digest BLOB NOT NULL, 
	kind VARCHAR(8) NOT NULL, 
	scope VARCHAR(8) NOT NULL, 
	name VARCHAR(100) NOT NULL, 
	created_at DOUBLE NOT NULL, 
	expires_at DOUBLE NOT NULL, 
	PRIMARY KEY (digest)
);

CREATE TABLE encoders (
	digest BLOB NOT NULL, 
	encoder BLOB NOT NULL, 
	PRIMARY KEY (digest)
);

CREATE TABLE helper_addresses (
	address VARCHAR(300) NOT NULL, 
	helper_id BLOB NOT NULL, 
	PRIMARY KEY (address)
);

CREATE TABLE helper_keys (
	fingerprint BLOB NOT NULL, 
	first_seen_at DOUBLE NOT NULL, 
	PRIMARY KEY (fingerprint)
);

CREATE TABLE helper_receipts (
	helper_id BLOB NOT NULL, 
	receipt BLOB NOT NULL, 
	PRIMARY KEY (helper_id)
);

CREATE TABLE job_files (
	job_id BLOB NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	rounds_done INTEGER NOT NULL, 
	part INTEGER NOT NULL, 
	content BLOB NOT NULL, 
	PRIMARY KEY (job_id, kind, rounds_done, part)
);

CREATE TABLE jobs (
	job_id BLOB NOT NULL, 
	"plan" BLOB NOT NULL, 
	submitted_at_s FLOAT NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	reason VARCHAR(32), 
	cause TEXT, 
	rounds_done INTEGER NOT NULL, 
	is_closed BOOLEAN NOT NULL, 
	rounds_charged INTEGER, 
	lease_owner VARCHAR(32), 
	lease_until_s FLOAT NOT NULL, 
	workers_lost INTEGER NOT NULL, 
	task_id BLOB, 
	dataset_id BLOB, 
	PRIMARY KEY (job_id)
);

CREATE TABLE report_buckets (
	bucket INTEGER NOT NULL, 
	folder VARCHAR(16) NOT NULL, 
	url TEXT NOT NULL, 
	PRIMARY KEY (bucket), 
	UNIQUE (folder), 
	UNIQUE (url)
);

CREATE TABLE report_states (
	task_id BLOB NOT NULL, 
	handle BLOB NOT NULL, 
	sequence INTEGER NOT NULL, 
	state VARCHAR(8) NOT NULL, 
	PRIMARY KEY (task_id, handle, sequence)
)
 WITHOUT ROWID;

CREATE TABLE schema_version (
	version INTEGER NOT NULL, 
	PRIMARY KEY (version)
);

CREATE TABLE tasks (
	task_id BLOB NOT NULL, 
	bundle BLOB NOT NULL, 
	created_at DOUBLE NOT NULL, 
	refused_since DOUBLE, 
	PRIMARY KEY (task_id)
);

CREATE TABLE arrived_reports (
	task_id BLOB NOT NULL, 
	slot INTEGER NOT NULL, 
	reports BIGINT NOT NULL, 
	PRIMARY KEY (task_id, slot), 
	FOREIGN KEY(task_id) REFERENCES tasks (task_id)
);

CREATE TABLE datasets (
	handle BLOB NOT NULL, 
	task_id BLOB NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	created_at DOUBLE NOT NULL, 
	received INTEGER NOT NULL, 
	size INTEGER NOT NULL, 
	view_mismatch INTEGER NOT NULL, 
	dataset_id BLOB, 
	chosen BLOB, 
	PRIMARY KEY (handle), 
	FOREIGN KEY(task_id) REFERENCES tasks (task_id), 
	UNIQUE (dataset_id)
);

CREATE TABLE job_rounds (
	job_id BLOB NOT NULL, 
	rounds_done INTEGER NOT NULL, 
	finished_at_s FLOAT NOT NULL, 
	learning_rate FLOAT, 
	gradient_norm FLOAT, 
	noise_to_signal FLOAT, 
	loss FLOAT, 
	accuracy FLOAT, 
	PRIMARY KEY (job_id, rounds_done), 
	FOREIGN KEY(job_id) REFERENCES jobs (job_id)
);

CREATE TABLE queries (
	query_id BLOB NOT NULL, 
	task_id BLOB NOT NULL, 
	dataset_id BLOB NOT NULL, 
	asked_at DOUBLE NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	spec BLOB NOT NULL, 
	codes BLOB NOT NULL, 
	request BLOB, 
	PRIMARY KEY (query_id), 
	FOREIGN KEY(task_id) REFERENCES tasks (task_id)
);

CREATE TABLE report_counts (
	task_id BLOB NOT NULL, 
	state VARCHAR(8) NOT NULL, 
	reports BIGINT NOT NULL, 
	PRIMARY KEY (task_id, state), 
	FOREIGN KEY(task_id) REFERENCES tasks (task_id)
);

CREATE TABLE report_objects (
	object INTEGER NOT NULL, 
	bucket INTEGER NOT NULL, 
	name VARCHAR(64) NOT NULL, 
	task_id BLOB NOT NULL, 
	num_bytes INTEGER NOT NULL, 
	digest BLOB NOT NULL, 
	reports INTEGER NOT NULL, 
	PRIMARY KEY (object), 
	FOREIGN KEY(bucket) REFERENCES report_buckets (bucket), 
	UNIQUE (name)
);

CREATE TABLE reports (
	sequence INTEGER NOT NULL, 
	task_id BLOB NOT NULL, 
	report_id BLOB NOT NULL, 
	time_bucket BIGINT NOT NULL, 
	key_id_0 SMALLINT NOT NULL, 
	ciphertext_0 BLOB NOT NULL, 
	key_id_1 SMALLINT NOT NULL, 
	ciphertext_1 BLOB NOT NULL, 
	digest BLOB NOT NULL, 
	PRIMARY KEY (sequence), 
	UNIQUE (digest), 
	FOREIGN KEY(task_id) REFERENCES tasks (task_id)
);

CREATE TABLE update_rounds (
	round_id BLOB NOT NULL, 
	task_id BLOB NOT NULL, 
	job_id BLOB NOT NULL, 
	round_index INTEGER NOT NULL, 
	round BLOB NOT NULL, 
	content BLOB NOT NULL, 
	state VARCHAR(8) NOT NULL, 
	opened_at DOUBLE NOT NULL, 
	handle BLOB, 
	chosen BLOB, 
	dataset_id BLOB, 
	PRIMARY KEY (round_id), 
	UNIQUE (job_id, round_index), 
	FOREIGN KEY(task_id) REFERENCES tasks (task_id)
);

CREATE TABLE dropped_reports (
	handle BLOB NOT NULL, 
	role INTEGER NOT NULL, 
	reason VARCHAR(40) NOT NULL, 
	reports INTEGER NOT NULL, 
	PRIMARY KEY (handle, role, reason), 
	FOREIGN KEY(handle) REFERENCES datasets (handle)
);

CREATE TABLE query_answers (
	query_id BLOB NOT NULL, 
	total BLOB NOT NULL, 
	epsilon DOUBLE NOT NULL, 
	collusion_epsilon DOUBLE NOT NULL, 
	PRIMARY KEY (query_id), 
	FOREIGN KEY(query_id) REFERENCES queries (query_id)
);

CREATE TABLE update_reports (
	sequence INTEGER NOT NULL, 
	round_id BLOB NOT NULL, 
	report_id BLOB NOT NULL, 
	time_bucket BIGINT NOT NULL, 
	key_id_0 SMALLINT NOT NULL, 
	ciphertext_0 BLOB NOT NULL, 
	key_id_1 SMALLINT NOT NULL, 
	ciphertext_1 BLOB NOT NULL, 
	digest BLOB NOT NULL, 
	PRIMARY KEY (sequence), 
	UNIQUE (round_id, digest), 
	FOREIGN KEY(round_id) REFERENCES update_rounds (round_id)
);

CREATE INDEX datasets_by_age ON datasets (created_at, handle);

CREATE INDEX ix_datasets_task_id ON datasets (task_id);

CREATE INDEX ix_jobs_state ON jobs (state);

CREATE INDEX ix_report_objects_task_id ON report_objects (task_id);

CREATE INDEX ix_update_rounds_task_id ON update_rounds (task_id);

CREATE INDEX jobs_by_age ON jobs (submitted_at_s, job_id);

CREATE INDEX jobs_by_dataset ON jobs (task_id, dataset_id);

CREATE INDEX jobs_by_state_and_age ON jobs (state, submitted_at_s, job_id);

CREATE INDEX queries_by_age ON queries (asked_at, query_id);

CREATE INDEX queries_by_dataset ON queries (dataset_id, asked_at);

CREATE INDEX tasks_by_age ON tasks (created_at, task_id);
