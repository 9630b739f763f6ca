CREATE TABLE public.audit (
    audit_id bigint NOT NULL,
    at_us bigint NOT NULL,
    op_id text NOT NULL,
    kind text NOT NULL,
    outcome text NOT NULL,
    actor text NOT NULL,
    original_actor text NOT NULL,
    tables text NOT NULL,
    reason text NOT NULL
);
CREATE SEQUENCE public.audit_audit_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.audit_audit_id_seq OWNED BY public.audit.audit_id;
CREATE TABLE public.batches (
    batch_id text NOT NULL,
    table_id text NOT NULL,
    first_seq bigint NOT NULL,
    last_seq bigint NOT NULL,
    rows bigint NOT NULL,
    size_bytes bigint NOT NULL,
    schema_version bigint NOT NULL,
    actor text NOT NULL,
    at_us bigint NOT NULL,
    partitions text NOT NULL,
    commit_id text,
    released_at_us bigint,
    checksum bytea NOT NULL,
    payload bytea NOT NULL
);
ALTER TABLE ONLY public.batches ALTER COLUMN payload SET STORAGE EXTERNAL;
CREATE TABLE public.branches (
    branch_id text NOT NULL,
    name text NOT NULL,
    kind text NOT NULL,
    protected smallint NOT NULL,
    tip text,
    covers text,
    parent_id text,
    forked_at bigint NOT NULL,
    shape bigint NOT NULL,
    created_at_us bigint NOT NULL,
    deleted_at_us bigint
);
CREATE TABLE public.claims (
    table_id text NOT NULL,
    branch_id text NOT NULL,
    hash bytea NOT NULL,
    number bigint NOT NULL
);
CREATE TABLE public.commits (
    commit_id text NOT NULL,
    branch_id text NOT NULL,
    kind text NOT NULL,
    actor text NOT NULL,
    message text NOT NULL,
    seq bigint NOT NULL,
    at_us bigint NOT NULL,
    parents text NOT NULL,
    tables text NOT NULL,
    op_id text
);
CREATE TABLE public.counter (
    id smallint NOT NULL,
    last_seq bigint NOT NULL,
    last_at_us bigint NOT NULL,
    writes bigint NOT NULL,
    format integer NOT NULL,
    lake_id text NOT NULL,
    warehouse text NOT NULL
);
CREATE SEQUENCE public.counter_id_seq
    AS smallint
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.counter_id_seq OWNED BY public.counter.id;
CREATE TABLE public.dead_letters (
    letter_id text NOT NULL,
    sink_id text NOT NULL,
    branch_id text NOT NULL,
    table_id text NOT NULL,
    partition text NOT NULL,
    epoch integer NOT NULL,
    seq bigint NOT NULL,
    state text NOT NULL,
    answer text NOT NULL,
    at_us bigint NOT NULL,
    payload bytea NOT NULL
);
CREATE TABLE public.deliveries (
    sink_id text NOT NULL,
    branch_id text NOT NULL,
    table_id text NOT NULL,
    partition text NOT NULL,
    delivery_id text NOT NULL,
    epoch integer NOT NULL,
    since bigint NOT NULL,
    until bigint NOT NULL,
    version bigint NOT NULL,
    snapshot_id bigint NOT NULL,
    schema_version bigint NOT NULL,
    settings text NOT NULL,
    opened_at_us bigint NOT NULL,
    attempts integer NOT NULL,
    not_before_us bigint NOT NULL,
    last_error text,
    parked text
);
CREATE TABLE public.files (
    branch_id text NOT NULL,
    table_id text NOT NULL,
    path text NOT NULL,
    added_version bigint NOT NULL,
    removed_version bigint,
    rows bigint NOT NULL,
    size_bytes bigint NOT NULL,
    first_seq bigint NOT NULL,
    last_seq bigint NOT NULL,
    partition text NOT NULL,
    origin smallint NOT NULL,
    schema_version bigint NOT NULL,
    at_us bigint NOT NULL,
    oldest_us bigint,
    newest_us bigint
);
CREATE TABLE public.heads (
    branch_id text NOT NULL,
    table_id text NOT NULL,
    version bigint NOT NULL,
    log_snapshot bigint,
    last_seq bigint NOT NULL,
    schema_version bigint NOT NULL,
    barrier bigint NOT NULL,
    swept_seq bigint NOT NULL,
    kept_from bigint NOT NULL,
    refuses text,
    rows_acked bigint NOT NULL,
    rows_log bigint NOT NULL,
    rows_dropped bigint NOT NULL,
    rows_pruned bigint NOT NULL,
    rows_quarantined bigint NOT NULL
);
CREATE TABLE public.holds (
    hold_id text NOT NULL,
    since_us bigint NOT NULL,
    until_us bigint NOT NULL,
    purpose text NOT NULL
);
CREATE TABLE public.idempotency (
    scope text NOT NULL,
    key text NOT NULL,
    digest text NOT NULL,
    answer text NOT NULL,
    at_us bigint NOT NULL,
    kept_until_us bigint
);
CREATE TABLE public.inbound_dead (
    lake_id text NOT NULL,
    sink_id text NOT NULL,
    branch_id text NOT NULL,
    table_id text NOT NULL,
    partition text NOT NULL,
    seq bigint NOT NULL,
    epoch bigint NOT NULL,
    at_us bigint NOT NULL
);
CREATE TABLE public.inbound_marks (
    lake_id text NOT NULL,
    sink_id text NOT NULL,
    branch_id text NOT NULL,
    table_id text NOT NULL,
    partition text NOT NULL,
    epoch bigint NOT NULL,
    seq bigint NOT NULL,
    gateway text NOT NULL,
    local_table_id text NOT NULL,
    rows bigint NOT NULL,
    at_us bigint NOT NULL
);
CREATE TABLE public.intent_tables (
    op_id text NOT NULL,
    branch_id text NOT NULL,
    table_id text NOT NULL
);
CREATE TABLE public.intents (
    op_id text NOT NULL,
    kind text NOT NULL,
    format integer NOT NULL,
    phase text NOT NULL,
    branch_id text NOT NULL,
    actor text NOT NULL,
    owner text NOT NULL,
    created_at_us bigint NOT NULL,
    body text NOT NULL
);
CREATE TABLE public.jobs (
    key text NOT NULL,
    why text NOT NULL,
    worker_id text NOT NULL,
    outcome text NOT NULL,
    runs bigint NOT NULL,
    decided_at_us bigint NOT NULL,
    took_us bigint NOT NULL,
    failures integer NOT NULL,
    wait_us bigint NOT NULL,
    parked_at_us bigint,
    error_code text,
    error text
);
CREATE TABLE public.late_ranges (
    table_id text NOT NULL,
    first_seq bigint NOT NULL,
    last_seq bigint NOT NULL,
    number bigint NOT NULL,
    at_us bigint NOT NULL
);
CREATE TABLE public.leases (
    name text NOT NULL,
    fence bigint NOT NULL,
    owner text,
    op_id text,
    beat bigint NOT NULL,
    waiting bigint NOT NULL
);
CREATE TABLE public.loads (
    load_id text NOT NULL,
    branch_id text NOT NULL,
    table_id text NOT NULL,
    key text NOT NULL,
    digest text NOT NULL,
    actor text NOT NULL,
    at_us bigint NOT NULL,
    parts text,
    parts_done integer NOT NULL,
    answer text NOT NULL,
    skipped bigint NOT NULL,
    finished smallint NOT NULL
);
CREATE TABLE public.moves (
    branch_id text NOT NULL,
    number bigint NOT NULL,
    at_us bigint NOT NULL,
    was text
);
CREATE TABLE public.outcomes (
    number bigint NOT NULL,
    txn_id text NOT NULL
);
CREATE TABLE public.purged_keys (
    table_id text NOT NULL,
    hash bytea NOT NULL,
    op_id text NOT NULL,
    seen smallint NOT NULL
);
CREATE TABLE public.quarantine (
    batch_id text NOT NULL,
    branch_id text NOT NULL,
    table_id text NOT NULL,
    first_seq bigint NOT NULL,
    last_seq bigint NOT NULL,
    rows bigint NOT NULL,
    schema_version bigint NOT NULL,
    actor text NOT NULL,
    appended_at_us bigint NOT NULL,
    at_us bigint NOT NULL,
    reason text NOT NULL,
    checksum bytea NOT NULL,
    payload bytea NOT NULL
);
CREATE TABLE public.query_marks (
    query_id text NOT NULL,
    table_id text NOT NULL,
    last_batch bigint NOT NULL
);
CREATE TABLE public.requests (
    request_id text NOT NULL,
    kind text NOT NULL,
    arguments text NOT NULL,
    place text,
    state text NOT NULL,
    fence bigint NOT NULL,
    worker_id text,
    asked_at_us bigint NOT NULL,
    ended_at_us bigint,
    progress text,
    answer text,
    error text
);
CREATE TABLE public.reservations (
    op_id text NOT NULL,
    branch_id text NOT NULL,
    table_id text NOT NULL,
    first_seq bigint NOT NULL,
    last_seq bigint NOT NULL
);
CREATE TABLE public.restores (
    restore_id text NOT NULL,
    backup_id text NOT NULL,
    at_us bigint NOT NULL,
    backup_seq bigint NOT NULL,
    seq bigint NOT NULL
);
CREATE TABLE public.schemas (
    table_id text NOT NULL,
    version bigint NOT NULL,
    branch_id text NOT NULL,
    definition text NOT NULL
);
CREATE TABLE public.sinks (
    sink_id text NOT NULL,
    name text NOT NULL,
    type text NOT NULL,
    branch_id text NOT NULL,
    tables text,
    settings text NOT NULL,
    start_seq bigint NOT NULL,
    created_at_us bigint NOT NULL,
    hold_until_us bigint,
    ticked_at_us bigint
);
CREATE TABLE public.snapshots (
    branch_id text NOT NULL,
    table_id text NOT NULL,
    version bigint NOT NULL,
    snapshot_id bigint NOT NULL,
    op_id text NOT NULL,
    kind text NOT NULL,
    rows bigint NOT NULL,
    at_us bigint NOT NULL,
    superseded_at_us bigint,
    condemned_at_us bigint
);
CREATE TABLE public.stream_heads (
    branch_id text NOT NULL,
    table_id text NOT NULL,
    partition text NOT NULL,
    last_seq bigint NOT NULL,
    pruned_upto bigint NOT NULL
);
CREATE TABLE public.tables (
    table_id text NOT NULL,
    name text NOT NULL,
    folded_name text NOT NULL,
    kind text NOT NULL,
    iceberg_name text NOT NULL,
    row_key text NOT NULL,
    key text NOT NULL,
    partition_by text NOT NULL,
    dedupe text NOT NULL,
    extra smallint NOT NULL,
    inbound smallint NOT NULL,
    created_at_us bigint NOT NULL,
    pins bigint NOT NULL,
    expired_upto_us bigint NOT NULL,
    settings text NOT NULL
);
CREATE TABLE public.tail (
    branch_id text NOT NULL,
    table_id text NOT NULL,
    first_seq bigint NOT NULL,
    batch_id text NOT NULL
);
CREATE TABLE public.tokens (
    token_id text NOT NULL,
    actor text NOT NULL,
    hash text NOT NULL,
    created_at_us bigint NOT NULL,
    revoked_at_us bigint
);
CREATE TABLE public.touches (
    table_id text NOT NULL,
    branch_id text NOT NULL,
    hash bytea NOT NULL,
    number bigint NOT NULL,
    seq bigint NOT NULL,
    batch_id text NOT NULL
);
CREATE TABLE public.watermarks (
    sink_id text NOT NULL,
    branch_id text NOT NULL,
    table_id text NOT NULL,
    partition text NOT NULL,
    epoch integer NOT NULL,
    seq bigint NOT NULL,
    rows bigint NOT NULL,
    withheld bigint NOT NULL,
    dead bigint NOT NULL,
    size_bytes bigint NOT NULL,
    units bigint NOT NULL,
    delivered_at_us bigint,
    last_error text,
    last_error_at_us bigint
);
CREATE TABLE public.workers (
    worker_id text NOT NULL,
    owner text NOT NULL,
    place text NOT NULL,
    state text NOT NULL,
    spark smallint NOT NULL,
    running text NOT NULL,
    since_us bigint NOT NULL,
    changed_at_us bigint NOT NULL
);
ALTER TABLE ONLY public.audit ALTER COLUMN audit_id SET DEFAULT nextval('public.audit_audit_id_seq'::regclass);
ALTER TABLE ONLY public.counter ALTER COLUMN id SET DEFAULT nextval('public.counter_id_seq'::regclass);
ALTER TABLE ONLY public.audit
    ADD CONSTRAINT audit_pkey PRIMARY KEY (audit_id);
ALTER TABLE ONLY public.batches
    ADD CONSTRAINT batches_pkey PRIMARY KEY (batch_id);
ALTER TABLE ONLY public.branches
    ADD CONSTRAINT branches_name_key UNIQUE (name);
ALTER TABLE ONLY public.branches
    ADD CONSTRAINT branches_pkey PRIMARY KEY (branch_id);
ALTER TABLE ONLY public.claims
    ADD CONSTRAINT claims_pkey PRIMARY KEY (table_id, branch_id, hash);
ALTER TABLE ONLY public.commits
    ADD CONSTRAINT commits_pkey PRIMARY KEY (commit_id);
ALTER TABLE ONLY public.commits
    ADD CONSTRAINT commits_seq_key UNIQUE (seq);
ALTER TABLE ONLY public.counter
    ADD CONSTRAINT counter_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.dead_letters
    ADD CONSTRAINT dead_letters_pkey PRIMARY KEY (letter_id);
ALTER TABLE ONLY public.deliveries
    ADD CONSTRAINT deliveries_delivery_id_key UNIQUE (delivery_id);
ALTER TABLE ONLY public.deliveries
    ADD CONSTRAINT deliveries_pkey PRIMARY KEY (sink_id, branch_id, table_id, partition);
ALTER TABLE ONLY public.files
    ADD CONSTRAINT files_pkey PRIMARY KEY (branch_id, table_id, path);
ALTER TABLE ONLY public.heads
    ADD CONSTRAINT heads_pkey PRIMARY KEY (branch_id, table_id);
ALTER TABLE ONLY public.holds
    ADD CONSTRAINT holds_pkey PRIMARY KEY (hold_id);
ALTER TABLE ONLY public.idempotency
    ADD CONSTRAINT idempotency_pkey PRIMARY KEY (scope, key);
ALTER TABLE ONLY public.inbound_dead
    ADD CONSTRAINT inbound_dead_pkey PRIMARY KEY (lake_id, sink_id, branch_id, table_id, partition, seq);
ALTER TABLE ONLY public.inbound_marks
    ADD CONSTRAINT inbound_marks_pkey PRIMARY KEY (lake_id, sink_id, branch_id, table_id, partition);
ALTER TABLE ONLY public.intent_tables
    ADD CONSTRAINT intent_tables_pkey PRIMARY KEY (op_id, branch_id, table_id);
ALTER TABLE ONLY public.intents
    ADD CONSTRAINT intents_pkey PRIMARY KEY (op_id);
ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT jobs_pkey PRIMARY KEY (key);
ALTER TABLE ONLY public.late_ranges
    ADD CONSTRAINT late_ranges_pkey PRIMARY KEY (table_id, first_seq);
ALTER TABLE ONLY public.leases
    ADD CONSTRAINT leases_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.loads
    ADD CONSTRAINT loads_pkey PRIMARY KEY (load_id);
ALTER TABLE ONLY public.moves
    ADD CONSTRAINT moves_pkey PRIMARY KEY (branch_id, number);
ALTER TABLE ONLY public.outcomes
    ADD CONSTRAINT outcomes_pkey PRIMARY KEY (number);
ALTER TABLE ONLY public.purged_keys
    ADD CONSTRAINT purged_keys_pkey PRIMARY KEY (table_id, hash, op_id);
ALTER TABLE ONLY public.quarantine
    ADD CONSTRAINT quarantine_pkey PRIMARY KEY (batch_id);
ALTER TABLE ONLY public.query_marks
    ADD CONSTRAINT query_marks_pkey PRIMARY KEY (query_id, table_id);
ALTER TABLE ONLY public.requests
    ADD CONSTRAINT requests_pkey PRIMARY KEY (request_id);
ALTER TABLE ONLY public.reservations
    ADD CONSTRAINT reservations_pkey PRIMARY KEY (op_id, table_id);
ALTER TABLE ONLY public.restores
    ADD CONSTRAINT restores_pkey PRIMARY KEY (restore_id);
ALTER TABLE ONLY public.schemas
    ADD CONSTRAINT schemas_pkey PRIMARY KEY (table_id, version);
ALTER TABLE ONLY public.sinks
    ADD CONSTRAINT sinks_name_key UNIQUE (name);
ALTER TABLE ONLY public.sinks
    ADD CONSTRAINT sinks_pkey PRIMARY KEY (sink_id);
ALTER TABLE ONLY public.snapshots
    ADD CONSTRAINT snapshots_pkey PRIMARY KEY (branch_id, table_id, version);
ALTER TABLE ONLY public.stream_heads
    ADD CONSTRAINT stream_heads_pkey PRIMARY KEY (branch_id, table_id, partition);
ALTER TABLE ONLY public.tables
    ADD CONSTRAINT tables_folded_name_key UNIQUE (folded_name);
ALTER TABLE ONLY public.tables
    ADD CONSTRAINT tables_iceberg_name_key UNIQUE (iceberg_name);
ALTER TABLE ONLY public.tables
    ADD CONSTRAINT tables_pkey PRIMARY KEY (table_id);
ALTER TABLE ONLY public.tail
    ADD CONSTRAINT tail_pkey PRIMARY KEY (branch_id, table_id, first_seq);
ALTER TABLE ONLY public.tokens
    ADD CONSTRAINT tokens_hash_key UNIQUE (hash);
ALTER TABLE ONLY public.tokens
    ADD CONSTRAINT tokens_pkey PRIMARY KEY (token_id);
ALTER TABLE ONLY public.touches
    ADD CONSTRAINT touches_pkey PRIMARY KEY (table_id, branch_id, hash, number);
ALTER TABLE ONLY public.watermarks
    ADD CONSTRAINT watermarks_pkey PRIMARY KEY (sink_id, branch_id, table_id, partition);
ALTER TABLE ONLY public.workers
    ADD CONSTRAINT workers_pkey PRIMARY KEY (worker_id);
CREATE INDEX batches_released ON public.batches USING btree (released_at_us) WHERE (released_at_us IS NOT NULL);
CREATE UNIQUE INDEX dead_letters_stream ON public.dead_letters USING btree (sink_id, branch_id, table_id, partition, epoch, seq);
CREATE INDEX leases_op ON public.leases USING btree (op_id);
CREATE INDEX purged_keys_op ON public.purged_keys USING btree (op_id);
CREATE INDEX reservations_table ON public.reservations USING btree (table_id, branch_id);
CREATE INDEX snapshots_id ON public.snapshots USING btree (table_id, snapshot_id);
ALTER TABLE ONLY public.batches
    ADD CONSTRAINT batches_table_id_fkey FOREIGN KEY (table_id) REFERENCES public.tables(table_id);
ALTER TABLE ONLY public.dead_letters
    ADD CONSTRAINT dead_letters_sink_id_fkey FOREIGN KEY (sink_id) REFERENCES public.sinks(sink_id);
ALTER TABLE ONLY public.deliveries
    ADD CONSTRAINT deliveries_sink_id_fkey FOREIGN KEY (sink_id) REFERENCES public.sinks(sink_id);
ALTER TABLE ONLY public.heads
    ADD CONSTRAINT heads_branch_id_fkey FOREIGN KEY (branch_id) REFERENCES public.branches(branch_id);
ALTER TABLE ONLY public.heads
    ADD CONSTRAINT heads_table_id_fkey FOREIGN KEY (table_id) REFERENCES public.tables(table_id);
ALTER TABLE ONLY public.inbound_marks
    ADD CONSTRAINT inbound_marks_local_table_id_fkey FOREIGN KEY (local_table_id) REFERENCES public.tables(table_id);
ALTER TABLE ONLY public.intent_tables
    ADD CONSTRAINT intent_tables_op_id_fkey FOREIGN KEY (op_id) REFERENCES public.intents(op_id);
ALTER TABLE ONLY public.schemas
    ADD CONSTRAINT schemas_branch_id_fkey FOREIGN KEY (branch_id) REFERENCES public.branches(branch_id);
ALTER TABLE ONLY public.schemas
    ADD CONSTRAINT schemas_table_id_fkey FOREIGN KEY (table_id) REFERENCES public.tables(table_id);
ALTER TABLE ONLY public.sinks
    ADD CONSTRAINT sinks_branch_id_fkey FOREIGN KEY (branch_id) REFERENCES public.branches(branch_id);
ALTER TABLE ONLY public.tail
    ADD CONSTRAINT tail_branch_id_fkey FOREIGN KEY (branch_id) REFERENCES public.branches(branch_id);
ALTER TABLE ONLY public.tail
    ADD CONSTRAINT tail_table_id_fkey FOREIGN KEY (table_id) REFERENCES public.tables(table_id);
ALTER TABLE ONLY public.watermarks
    ADD CONSTRAINT watermarks_sink_id_fkey FOREIGN KEY (sink_id) REFERENCES public.sinks(sink_id);
