CREATE TABLE chain (
	sequence INTEGER NOT NULL, 
	head BYTEA NOT NULL, 
	PRIMARY KEY (sequence)
);

CREATE TABLE schema_version (
	version SERIAL NOT NULL, 
	PRIMARY KEY (version)
);

CREATE TABLE tasks (
	task_id BYTEA NOT NULL, 
	task BYTEA NOT NULL, 
	role INTEGER NOT NULL, 
	signature BYTEA NOT NULL, 
	PRIMARY KEY (task_id)
);

CREATE TABLE datasets (
	dataset_id BYTEA NOT NULL, 
	task_id BYTEA NOT NULL, 
	size INTEGER NOT NULL, 
	PRIMARY KEY (dataset_id), 
	FOREIGN KEY(task_id) REFERENCES tasks (task_id)
);

CREATE TABLE used_reports (
	task_id BYTEA NOT NULL, 
	report_id BYTEA NOT NULL, 
	PRIMARY KEY (task_id, report_id), 
	FOREIGN KEY(task_id) REFERENCES tasks (task_id)
);

CREATE TABLE jobs (
	job_id BYTEA NOT NULL, 
	dataset_id BYTEA NOT NULL, 
	spec BYTEA NOT NULL, 
	model BYTEA NOT NULL, 
	rounds_answered INTEGER NOT NULL, 
	is_closed BOOLEAN NOT NULL, 
	PRIMARY KEY (job_id), 
	FOREIGN KEY(dataset_id) REFERENCES datasets (dataset_id)
);

CREATE TABLE queries (
	query_id BYTEA NOT NULL, 
	dataset_id BYTEA NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	spec BYTEA NOT NULL, 
	answer BYTEA NOT NULL, 
	PRIMARY KEY (query_id), 
	FOREIGN KEY(dataset_id) REFERENCES datasets (dataset_id)
);

CREATE TABLE segments (
	dataset_id BYTEA NOT NULL, 
	number INTEGER NOT NULL, 
	holds_ranks BOOLEAN NOT NULL, 
	name VARCHAR(128) NOT NULL, 
	digest BYTEA NOT NULL, 
	num_bytes INTEGER NOT NULL, 
	records INTEGER NOT NULL, 
	PRIMARY KEY (dataset_id, number, holds_ranks), 
	FOREIGN KEY(dataset_id) REFERENCES datasets (dataset_id)
);

CREATE TABLE rounds (
	job_id BYTEA NOT NULL, 
	round_index INTEGER NOT NULL, 
	weights_digest BYTEA NOT NULL, 
	answer BYTEA, 
	sealed_seed BYTEA, 
	PRIMARY KEY (job_id, round_index), 
	FOREIGN KEY(job_id) REFERENCES jobs (job_id)
);

CREATE INDEX ix_jobs_dataset_id ON jobs (dataset_id);

CREATE INDEX ix_queries_dataset_id ON queries (dataset_id);

CREATE INDEX ix_segments_name ON segments (name);
