"""The functions of DuckDB that may be called in conditions and in queries: what is not listed is refused.

`OF_A_ROW` depend on their arguments alone, so a condition that is judged again judges the same. `OF_A_QUERY` has those
too that take many rows, give another answer every time, or make rows of a value; none of them tells anything of the
process, the disk or our own tables, and none waits.

Left out on purpose: everything of `pg_catalog` and `information_schema`, settings and variables, sequences, sleeps,
anything that parses or runs SQL, and `hash`, whose values another version of DuckDB may change.
"""

from __future__ import annotations

_OPERATORS = (
    "!= !__postfix !~~ !~~* % & && * ** + - -> ->> / // < <-> << <= <=> <@ <> = == > >= >> @ @> ^ ^@ | || ~ ~~ "
    "~~* ~~~ add subtract multiply divide mod xor like_escape not_like_escape ilike_escape not_ilike_escape"
)

_NUMBERS = (
    "abs acos acosh asin asinh atan atan2 atanh binom bit_count cbrt ceil ceiling cos cosh cot degrees even exp "
    "factorial fdiv floor fmod gamma gcd greatest greatest_common_divisor isfinite isinf isnan lcm least "
    "least_common_multiple lgamma ln log log10 log2 nextafter pi pow power radians round round_even roundbankers "
    "sign signbit sin sinh sqrt tan tanh trunc"
)

_TEXTS = (
    "array_to_string ascii bar base64 bin bit_length bit_position bitstring char_length character_length chr "
    "concat concat_ws contains damerau_levenshtein decode editdist3 encode ends_with format "
    "formatReadableDecimalSize formatReadableSize format_bytes from_base64 from_binary from_hex get_bit hamming "
    "hex instr jaccard jaro_similarity jaro_winkler_similarity lcase left left_grapheme len length "
    "length_grapheme levenshtein lower lpad ltrim md5 md5_number md5_number_lower md5_number_upper mismatches "
    "nfc_normalize octet_length ord overlay parse_dirname parse_dirpath parse_filename parse_formatted_bytes "
    "parse_path position prefix printf regexp_escape regexp_extract regexp_extract_all regexp_full_match "
    "regexp_matches regexp_replace regexp_split_to_array repeat replace reverse right right_grapheme rpad rtrim "
    "set_bit sha1 sha256 split split_part starts_with str_split str_split_regex string_split string_split_regex "
    "string_to_array strip_accents strlen strpos substr substring substring_grapheme suffix to_base to_base64 "
    "to_binary to_hex translate trim ucase unbin unhex unicode upper url_decode url_encode"
)

_TIMES = (
    "age century date_add date_diff date_part date_sub date_trunc datediff datepart datesub datetrunc day dayname "
    "dayofmonth dayofweek dayofyear days_in_month decade epoch epoch_ms epoch_ns epoch_us era hour isodow isoyear "
    "julian last_day make_date make_time make_timestamp make_timestamp_ms make_timestamp_ns make_timestamptz "
    "microsecond millennium millisecond minute month monthname nanosecond normalized_interval quarter second "
    "strftime strptime time_bucket timezone timezone_hour timezone_minute to_centuries to_days to_decades "
    "to_hours to_microseconds to_millennia to_milliseconds to_minutes to_months to_quarters to_seconds "
    "to_timestamp to_weeks to_years try_strptime uuid_extract_timestamp uuid_extract_version week weekday "
    "weekofyear year yearweek"
)

_NESTED = (
    "aggregate apply array_aggr array_aggregate array_append array_apply array_cat array_concat array_contains "
    "array_cosine_distance array_cosine_similarity array_cross_product array_distance array_distinct "
    "array_dot_product array_extract array_filter array_grade_up array_has array_has_all array_has_any "
    "array_indexof array_inner_product array_intersect array_length array_negative_dot_product "
    "array_negative_inner_product array_pop_back array_pop_front array_position array_prepend array_push_back "
    "array_push_front array_reduce array_resize array_reverse array_reverse_sort array_select array_slice "
    "array_sort array_transform array_unique array_value array_where array_zip cardinality element_at filter "
    "flatten generate_series generate_subscripts grade_up list_aggr list_aggregate list_any_value list_append "
    "list_apply list_avg list_bit_and list_bit_or list_bit_xor list_bool_and list_bool_or list_cat list_concat "
    "list_contains list_cosine_distance list_cosine_similarity list_count list_distance list_distinct "
    "list_dot_product list_element list_entropy list_extract list_filter list_first list_grade_up list_has "
    "list_has_all list_has_any list_histogram list_indexof list_inner_product list_intersect list_kurtosis "
    "list_kurtosis_pop list_last list_mad list_max list_median list_min list_mode list_negative_dot_product "
    "list_negative_inner_product list_pack list_position list_prepend list_product list_reduce list_resize "
    "list_reverse list_reverse_sort list_select list_sem list_skewness list_slice list_sort list_stddev_pop "
    "list_stddev_samp list_string_agg list_sum list_transform list_unique list_value list_var_pop list_var_samp "
    "list_where list_zip map map_concat map_contains map_contains_entry map_contains_value map_entries "
    "map_extract map_extract_value map_from_entries map_keys map_values range reduce row struct_concat "
    "struct_contains struct_extract struct_extract_at struct_has struct_indexof struct_insert struct_keys "
    "struct_pack struct_position struct_update struct_values union_extract union_tag union_value"
)

_JSON = (
    "array_to_json from_json from_json_strict json json_array json_array_length json_contains json_deep_merge "
    "json_exists json_extract json_extract_path json_extract_path_text json_extract_string json_insert json_keys "
    "json_merge_patch json_merge_patch_diff json_normalize json_object json_pretty json_quote json_remove "
    "json_replace json_set json_strip_nulls json_structure json_transform json_transform_strict json_type "
    "json_valid json_value row_to_json to_json"
)

_CHOICES = "coalesce constant_or_null if ifnull nullif typeof pg_typeof try"

_AGGREGATES = (
    "any_value approx_count_distinct approx_quantile approx_top_k arbitrary arg_max arg_max_null "
    "arg_max_nulls_last arg_min arg_min_null arg_min_nulls_last argmax argmin array_agg avg bit_and bit_or "
    "bit_xor bitstring_agg bool_and bool_or corr count count_if count_star countif covar_pop covar_samp entropy "
    "favg first fsum geomean geometric_mean group_concat grouping grouping_id histogram histogram_exact "
    "json_group_array json_group_object json_group_structure kahan_sum kurtosis kurtosis_pop last list listagg "
    "mad max max_by mean median min min_by mode product quantile quantile_cont quantile_disc regr_avgx regr_avgy "
    "regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy reservoir_quantile sem skewness "
    "stddev stddev_pop stddev_samp string_agg sum sum_no_overflow sumkahan var_pop var_samp variance wavg "
    "weighted_avg"
)

_WINDOWS = (
    "cume_dist dense_rank fill first_value lag last_value lead nth_value ntile percent_rank rank rank_dense row_number"
)

_CHANGING = (
    "ago current_date current_localtime current_localtimestamp current_time current_timestamp gen_random_uuid "
    "get_current_time get_current_timestamp hash now random today transaction_timestamp uuid uuidv4 uuidv7"
)

_MAKING_ROWS = "alias enum_code enum_first enum_last enum_range equi_width_bins error regexp_split_to_table unnest"


def names_in(*texts: str) -> frozenset[str]:
    """The names of lists."""
    return frozenset(name.lower() for text in texts for name in text.split())


OF_A_ROW = names_in(_OPERATORS, _NUMBERS, _TEXTS, _TIMES, _NESTED, _JSON, _CHOICES)
"""What a condition may call as far as it answers the same every time; `growth` has those that also stay small.

`age` counts from today where it is given one time alone.
"""

OF_A_QUERY = OF_A_ROW | names_in(_AGGREGATES, _WINDOWS, _CHANGING, _MAKING_ROWS)
"""What a query may call."""

OF_TABLES = names_in("generate_series json_each json_tree range repeat repeat_row unnest")
"""What a query may read from, besides tables."""

LEAST_ARGUMENTS = {"age": 2}
"""Functions of a row that look at the clock when they have fewer arguments."""
