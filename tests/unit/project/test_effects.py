"""Every setting has a test that shows its effect: on a command line, a port or an answer."""

from __future__ import annotations

import ast
from dataclasses import fields

import pytest

from sm.settings import HERE, Settings

ENVIRONMENT = "integration/box/test_environment.py"
SESSIONS = "integration/box/test_sessions.py"
ADMISSION = "unit/router/test_admission.py"
EMBEDDED_METRICS = "unit/server/test_embedded_metrics.py"
REQUEST_LOG = "unit/router/test_request_log.py"
BATCH = "integration/box/test_batch.py"
#: For each field of the settings: the file below tests/ and the test of its effect.
EFFECT_TESTS = {
    "port": ("integration/box/test_start.py", "test_a_port_in_use_stops_the_start"),
    "safe_ports": (ENVIRONMENT, "test_ports_are_drawn_from_the_safe_range"),
    "ping_mode": (ENVIRONMENT, "test_ping_in_live_mode_is_200_beside_a_model_that_cannot_load"),
    "repository": ("integration/box/test_start.py", "test_a_repository_without_models_stops_the_start"),
    "clients": (
        "integration/box/test_start.py",
        "test_the_readmes_client_works_in_a_folder_of_its_own",
    ),
    "broken_clients": (ENVIRONMENT, "test_a_broken_client_is_skipped_if_the_setting_says_so"),
    "multi_model": (
        "integration/box/test_multi_model.py",
        "test_a_box_without_a_model_is_ready_and_lists_none",
    ),
    "archives": (
        "integration/box/test_multi_model.py",
        "test_a_model_can_be_loaded_shown_invoked_and_unloaded",
    ),
    "disable_namespacing": (
        "integration/box/test_multi_model.py",
        "test_without_namespacing_a_taken_step_name_is_a_409_and_a_full_gpu_a_507",
    ),
    "max_instances": (
        "integration/box/test_multi_model.py",
        "test_an_archive_that_would_harm_triton_or_other_archives_is_a_400",
    ),
    "load_gpu_limit": (
        "integration/box/test_multi_model.py",
        "test_without_namespacing_a_taken_step_name_is_a_409_and_a_full_gpu_a_507",
    ),
    "default_model": (ENVIRONMENT, "test_an_unknown_default_model_stops_the_start"),
    "workers": (ENVIRONMENT, "test_the_more_specific_variable_sets_the_number_of_workers"),
    "threads": (BATCH, "test_execution_parameters_are_those_of_the_settings"),
    "queue": (ADMISSION, "test_in_a_full_box_the_newest_request_of_the_longest_queue_is_refused"),
    "model_queue": (ADMISSION, "test_a_models_queue_may_be_shorter_than_that_of_all_models"),
    "receive_timeout": (
        "integration/supervisor/test_front.py",
        "test_a_head_or_a_body_that_stalls_ends_its_connection_and_no_other",
    ),
    "timeout": (
        "integration/box/test_async.py",
        "test_a_request_may_take_longer_than_a_minute_in_any_part_of_the_box",
    ),
    "batch": (BATCH, "test_a_body_over_the_real_time_limit_is_accepted_in_batch_mode"),
    "batch_strategy": (BATCH, "test_execution_parameters_are_those_of_the_settings"),
    "max_transforms": (BATCH, "test_execution_parameters_stay_within_the_platforms_limits"),
    "stream_timeout": (
        "integration/streaming/test_box.py",
        "test_a_stream_has_its_own_time_limit_and_reports_when_it_has_passed",
    ),
    "stream_stall": (
        "integration/streaming/test_stalls.py",
        "test_an_unread_stream_ends_and_costs_little_memory",
    ),
    "startup_timeout": (ENVIRONMENT, "test_a_model_that_exceeds_the_startup_timeout_stops_the_start"),
    "drain": (ENVIRONMENT, "test_a_short_drain_ends_a_long_request"),
    "max_payload_mb": (
        "integration/supervisor/test_front.py",
        "test_a_body_over_the_limit_is_413_in_the_contracts_shape",
    ),
    "max_request_size": (ENVIRONMENT, "test_the_body_limit_in_bytes_wins_over_the_one_in_mebibytes"),
    "max_records": (BATCH, "test_a_request_may_have_as_many_records_as_the_setting_allows"),
    "decode_memory_mb": (
        "integration/box/test_hostile_bodies.py",
        "test_a_picture_larger_than_the_setting_is_a_413_with_the_number",
    ),
    "default_accept": (ENVIRONMENT, "test_a_caller_that_accepts_anything_gets_the_default_accept"),
    "program": (
        "integration/toolkit/test_box_script.py",
        "test_a_program_that_does_not_exist_stops_the_start_and_is_named",
    ),
    "submit_directory": (
        "unit/plugins/toolkit/test_code.py",
        "test_the_toolkits_environment_variables_name_script_and_folder",
    ),
    "install_requirements": (
        "integration/toolkit/test_box_script.py",
        "test_transform_fn_alone_works_with_a_package_from_a_wheel",
    ),
    "sessions": (SESSIONS, "test_sessions_are_off_by_default_and_leave_no_files"),
    "sessions_expiration": (SESSIONS, "test_sessions_expire_are_limited_and_use_the_configured_folder"),
    "max_sessions": (SESSIONS, "test_sessions_expire_are_limited_and_use_the_configured_folder"),
    "sessions_path": (SESSIONS, "test_sessions_expire_are_limited_and_use_the_configured_folder"),
    "local_endpoints": (ENVIRONMENT, "test_the_local_endpoints_for_boto3_can_be_switched_off"),
    "shared_memory": ("integration/triton/test_transport.py", "test_shared_memory_can_be_turned_off"),
    "shared_memory_mb": (
        "unit/test_run_state.py",
        "test_the_shared_memory_setting_is_divided_among_the_workers",
    ),
    "triton_http_port": (ENVIRONMENT, "test_tritons_ports_are_those_set_and_listen_on_loopback_only"),
    "triton_grpc_port": (ENVIRONMENT, "test_tritons_ports_are_those_set_and_listen_on_loopback_only"),
    "triton_ports": (
        "integration/reference/test_article_triton.py",
        "test_the_three_ports_are_open_on_loopback_only",
    ),
    "triton_holes_accepted": (
        "integration/access/test_start.py",
        "test_a_triton_with_known_holes_is_opened_to_everybody_only_by_who_accepts_them",
    ),
    "allow_grpc": (ENVIRONMENT, "test_tritons_own_grpc_client_works_against_the_open_port"),
    "triton_metrics_port": (
        ENVIRONMENT,
        "test_tritons_ports_are_those_set_and_listen_on_loopback_only",
    ),
    "allow_metrics": (ENVIRONMENT, "test_only_the_ports_that_are_allowed_are_open_and_metrics_answers"),
    "inference_type": ("integration/box/test_v2.py", "test_invocations_may_be_set_to_generate"),
    "triton_threads": (ENVIRONMENT, "test_a_variable_becomes_an_option_of_triton"),
    "triton_copy_threads": (ENVIRONMENT, "test_a_variable_becomes_an_option_of_triton"),
    "triton_log_verbose": (ENVIRONMENT, "test_a_variable_becomes_an_option_of_triton"),
    "triton_log_info": (ENVIRONMENT, "test_a_variable_becomes_an_option_of_triton"),
    "triton_log_warning": (ENVIRONMENT, "test_a_variable_becomes_an_option_of_triton"),
    "triton_log_error": (ENVIRONMENT, "test_a_variable_becomes_an_option_of_triton"),
    "triton_traces": (
        "integration/tracing/test_traces.py",
        "test_stages_are_ordered_spans_of_the_request_and_tritons_spans_are_below_infer",
    ),
    "triton_shm_default": (ENVIRONMENT, "test_the_python_backends_shared_memory_is_as_set"),
    "triton_shm_growth": (ENVIRONMENT, "test_the_python_backends_shared_memory_is_as_set"),
    "triton_arguments": (ENVIRONMENT, "test_a_restricted_api_is_a_403_without_the_header_and_200_with_it"),
    "build_engines": (
        "integration/supervisor/test_engines.py",
        "test_standin_ping_names_the_model_being_built_and_a_stop_ends_the_build",
    ),
    "triton_server": (
        "integration/triton/test_server.py",
        "test_a_server_program_that_does_not_exist_stops_the_start",
    ),
    "precision": ("integration/box/test_engines.py", "test_fp32_gives_what_onnx_runtime_gives"),
    "without_gpu": (
        "integration/reference/test_official_repositories.py",
        "test_a_setting_makes_a_model_for_a_gpu_an_error",
    ),
    "load_timeout": (
        "integration/reference/test_toolkit_hanging_models.py",
        "test_a_load_that_takes_too_long_is_a_504_and_frees_its_name",
    ),
    "nginx": ("integration/supervisor/test_front.py", "test_nginx_is_used_if_found_required_or_off_as_set"),
    "request_tokens": (
        "integration/box/test_one_models_trouble.py",
        "test_a_wrapped_model_answers_with_tokens_that_callers_never_see",
    ),
    "wait_seconds": ("unit/triton/test_repeats.py", "test_a_wait_ends_after_the_longest_time"),
    "away_seconds": (
        "integration/box/test_one_models_trouble.py",
        "test_ping_names_a_model_that_stays_away",
    ),
    "model_timeout": (
        "integration/box/test_hanging_models.py",
        "test_a_model_that_is_only_slow_is_kept_within_its_own_time",
    ),
    "restarts": (ENVIRONMENT, "test_a_box_without_restarts_ends_when_a_process_dies"),
    "log_level": (ENVIRONMENT, "test_at_log_level_error_an_invocation_is_not_logged"),
    "emf": (EMBEDDED_METRICS, "test_embedded_metrics_are_on_if_set_or_on_sagemaker"),
    "emf_namespace": (
        EMBEDDED_METRICS,
        "test_a_line_has_requests_errors_and_latency_by_model_and_status_class",
    ),
    "endpoint_name": (
        "integration/logs/test_local_logs.py",
        "test_the_box_logs_its_cloudwatch_metrics_once",
    ),
    "log_file": (
        "integration/logs/test_local_logs.py",
        "test_one_command_finds_yesterdays_refused_requests_with_their_reasons",
    ),
    "log_sample": (REQUEST_LOG, "test_successes_are_sampled_but_errors_and_slow_requests_are_always_logged"),
    "log_slow": (REQUEST_LOG, "test_successes_are_sampled_but_errors_and_slow_requests_are_always_logged"),
    "log_format": (ENVIRONMENT, "test_the_log_can_be_plain_text"),
    "cache": ("integration/build/test_prepare.py", "test_a_cache_that_cannot_be_written_is_one_sentence"),
    "s3_buckets": (
        "integration/s3/test_box.py",
        "test_a_picture_is_read_from_s3_and_its_result_written_there",
    ),
    "s3_threads": (
        "integration/s3/test_slow_s3.py",
        "test_a_slow_s3_ends_in_a_504_and_does_not_delay_other_callers",
    ),
    "s3_timeout": (
        "integration/s3/test_store.py",
        "test_a_response_that_never_ends_is_given_up_without_a_deadline_too",
    ),
    "worker_class": (ENVIRONMENT, "test_gunicorns_own_worker_class_can_be_set"),
    "grpc_client": (
        "integration/triton/test_wire_against_h2.py",
        "test_a_setting_chooses_our_client_or_grpcio",
    ),
    "tls_certificate": (
        "integration/access/test_tls.py",
        "test_curl_trusts_the_certificate_and_gets_its_response",
    ),
    "tls_key": ("integration/access/test_tls.py", "test_curl_trusts_the_certificate_and_gets_its_response"),
    "tls_port": (
        "integration/access/test_start.py",
        "test_a_port_with_tls_that_is_taken_is_named_by_its_variable",
    ),
    "http2": ("integration/access/test_tls.py", "test_http_2_is_served_when_it_is_on"),
    "api_keys_file": ("integration/access/test_api_keys.py", "test_every_route_needs_a_key"),
    "rate_limit": (
        "integration/access/test_keys.py",
        "test_a_key_has_its_own_limits_or_those_of_the_settings",
    ),
    "rate_burst": (
        "integration/access/test_keys.py",
        "test_a_key_has_its_own_limits_or_those_of_the_settings",
    ),
    "cors_origins": ("integration/access/test_cors.py", "test_a_page_of_a_listed_origin_can_invoke_a_model"),
}


@pytest.mark.parametrize("name", [field.name for field in fields(Settings)])
def test_every_setting_has_a_test_of_its_effect(name: str) -> None:
    assert name in EFFECT_TESTS, "write a test that shows what it does, and name it here"
    file, test = EFFECT_TESTS[name]
    tree = ast.parse((HERE / "tests" / file).read_text())
    assert test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
