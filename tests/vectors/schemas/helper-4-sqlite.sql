CREATE TABLE chain (
	sequence INTEGER NOT NULL, 
	head BLOB NOT NULL, 
	PRIMARY KEY (sequence)
);

CREATE TABLE schema_version (
	version INTEGER NOT NULL, 
	PRIMARY KEY (version)
);

CREATE TABLE tasks (
	task_id BLOB NOT NULL, 
	task BLOB NOT NULL, 
	role INTEGER NOT NULL, 
	signature BLOB NOT NULL, 
	PRIMARY KEY (task_id)
);

CREATE TABLE datasets (
	dataset_id BLOB NOT NULL, 
	task_id BLOB NOT NULL, 
	size INTEGER NOT NULL, 
	PRIMARY KEY (dataset_id), 
	FOREIGN KEY(task_id) REFERENCES tasks (task_id)
);

CREATE TABLE used_reports (
	task_id BLOB NOT NULL, 
	report_id BLOB NOT NULL, 
	PRIMARY KEY (task_id, report_id), 
	FOREIGN KEY(task_id) REFERENCES tasks (task_id)
)
 WITHOUT ROWID;

CREATE TABLE jobs (
	job_id BLOB NOT NULL, 
	dataset_id BLOB NOT NULL, 
	spec BLOB NOT NULL, 
	model BLOB NOT NULL, 
	rounds_answered INTEGER NOT NULL, 
	is_closed BOOLEAN NOT NULL, 
	PRIMARY KEY (job_id), 
	FOREIGN KEY(dataset_id) REFERENCES datasets (dataset_id)
);

CREATE TABLE queries (
	query_id BLOB NOT NULL, 
	dataset_id BLOB NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	spec BLOB NOT NULL, 
	answer BLOB NOT NULL, 
	PRIMARY KEY (query_id), 
	FOREIGN KEY(dataset_id) REFERENCES datasets (dataset_id)
);

CREATE TABLE segments (
	dataset_id BLOB NOT NULL, 
	number INTEGER NOT NULL, 
	holds_ranks BOOLEAN NOT NULL, 
	name VARCHAR(128) NOT NULL, 
	digest BLOB NOT NULL, 
	num_bytes INTEGER NOT NULL, 
	records INTEGER NOT NULL, 
	PRIMARY KEY (dataset_id, number, holds_ranks), 
	FOREIGN KEY(dataset_id) REFERENCES datasets (dataset_id)
);

CREATE TABLE rounds (
	job_id BLOB NOT NULL, 
	round_index INTEGER NOT NULL, 
	weights_digest BLOB NOT NULL, 
	answer BLOB, 
	sealed_seed BLOB, 
	PRIMARY KEY (job_id, round_index), 
	FOREIGN KEY(job_id) REFERENCES jobs (job_id)
);

CREATE INDEX ix_jobs_dataset_id ON jobs (dataset_id);

CREATE INDEX ix_queries_dataset_id ON queries (dataset_id);

CREATE INDEX ix_segments_name ON segments (name);
