"""The image's entrypoint: Spark's two calls become our processes, all else is run as given."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from laptop.java import find_java
from metering.vocabulary import Job

ENTRYPOINT = Path(__file__).parents[2] / "image" / "entrypoint"
SUBMITTED = "driver --properties-file /opt/spark/conf/spark.properties --class org.apache.spark.deploy.PythonRunner"


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A PATH whose `tini` prints what it would run, and the variables that it would get."""
    tini = tmp_path / "tini"
    tini.write_text('#!/bin/bash\necho "$@"\necho "$PYSPARK_SUBMIT_ARGS"\necho "${WEIR_SUBMITTED:-}"\n')
    tini.chmod(0o755)
    return f"{tmp_path}:/usr/bin:/bin"


def run(path: str, call: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {"PATH": path, "SPARK_HOME": "/spark", "JAVA_HOME": "/java", "WEIR_JARS": "/jars", **environment}
    command = [str(ENTRYPOINT), *shlex.split(call)]
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


def test_a_driver_is_our_program_with_sparks_properties(path: str) -> None:
    answer = run(
        path,
        f"{SUBMITTED} local:///opt/weir/jobs/__main__.py billing --config /etc/weir/billing.yaml",
        SPARK_DRIVER_BIND_ADDRESS="10.0.0.7",
    )
    program, arguments, submitted = answer.stdout.splitlines()
    assert (
        program
        == "-- python -P -m jobs.restart python -P /opt/weir/jobs/__main__.py billing --config /etc/weir/billing.yaml"
    )
    assert submitted == "true"
    words = shlex.split(arguments)
    assert words[words.index("--properties-file") + 1] == "/opt/spark/conf/spark.properties"
    assert "spark.driver.bindAddress=10.0.0.7" in words
    assert words[words.index("--deploy-mode") + 1] == "client"
    assert words[-1] == "pyspark-shell"


@pytest.mark.parametrize("name", ["audit", "close"])
def test_what_ends_by_itself_is_never_restarted(path: str, name: str) -> None:
    """A close that refuses an account ends with 1: started again and again, it would issue the next month, too."""
    program = f"local:///opt/weir/jobs/__main__.py {name} --config /etc/weir/{name}.yaml --last 1d"
    answer = run(path, f"{SUBMITTED} {program}", SPARK_DRIVER_BIND_ADDRESS="10.0.0.7")
    command, _, submitted = answer.stdout.splitlines()
    assert command == f"-- python -P {program.removeprefix('local://')}"
    assert submitted == "true"


@pytest.mark.parametrize("job", Job)
def test_every_other_application_is_restarted(path: str, job: Job) -> None:
    answer = run(path, f"{SUBMITTED} local:///jobs.py {job}", SPARK_DRIVER_BIND_ADDRESS="10.0.0.7")
    assert answer.stdout.startswith(f"-- python -P -m jobs.restart python -P /jobs.py {job}\n")


def test_a_driver_refuses_unknown_arguments(path: str) -> None:
    answer = run(path, "driver --proxy-user someone local:///x.py", SPARK_DRIVER_BIND_ADDRESS="10.0.0.7")
    assert answer.returncode == 64
    assert "--proxy-user" in answer.stderr


def run_executor(path: str, **more: str) -> subprocess.CompletedProcess[str]:
    """As the pod of an executor does, with `more` in its environment."""
    given = ("DRIVER_URL", "EXECUTOR_ID", "EXECUTOR_CORES", "APPLICATION_ID", "EXECUTOR_POD_IP", "EXECUTOR_POD_NAME")
    environment = {f"SPARK_{name}": name.lower() for name in given}
    return run(path, "executor", SPARK_EXECUTOR_MEMORY="512m", SPARK_RESOURCE_PROFILE_ID="0", **environment, **more)


def test_an_executor_is_sparks_with_our_jars_and_its_options(path: str) -> None:
    answer = run_executor(
        path,
        SPARK_JAVA_OPT_0="-Dspark.driver.port=7078",
        SPARK_JAVA_OPT_1="-Duser.timezone=UTC",
    )
    program = answer.stdout.splitlines()[0]
    assert program.startswith("-- /java/bin/java -Dspark.driver.port=7078 -Duser.timezone=UTC -Xms512m -Xmx512m -cp ")
    assert ":/jars/*:/spark/jars/* " in program
    assert "--driver-url driver_url --executor-id executor_id --cores executor_cores" in program


def test_an_executor_trusts_the_authorities_that_its_pod_is_given(path: str) -> None:
    python = Path(path.partition(":")[0]) / "python"
    python.write_text(
        '#!/bin/bash\n[ "$*" = "-P -m jobs.runtime.java_trust" ] && echo "-Dtrust=$SSL_CERT_FILE -Dof=a"\n'
    )
    python.chmod(0o755)
    answer = run_executor(
        path,
        SPARK_JAVA_OPT_0="-Duser.timezone=UTC",
        SSL_CERT_FILE="/etc/minio-ca/ca.crt",
    )
    options = "-Duser.timezone=UTC -Dtrust=/etc/minio-ca/ca.crt -Dof=a -Xms512m"
    assert answer.stdout.splitlines()[0].startswith(f"-- /java/bin/java {options} ")


def test_an_executor_without_the_authorities_that_it_is_given_does_not_start(path: str) -> None:
    python = Path(path.partition(":")[0]) / "python"
    python.write_text("#!/bin/bash\necho 'SSL_CERT_FILE must name a file of certificates' >&2\nexit 1\n")
    python.chmod(0o755)
    answer = run_executor(
        path,
        SSL_CERT_FILE="/etc/minio-ca",
    )
    assert (answer.returncode, answer.stdout) == (1, "")
    assert "SSL_CERT_FILE" in answer.stderr


def test_anything_else_is_run_as_given(path: str) -> None:
    program, _, submitted = run(path, "weir usage --account 'a b'").stdout.splitlines()
    assert program == "-- weir usage --account a b"
    assert submitted == ""


CHOSEN = 1_000_650_000
"""A user id as OpenShift chooses them."""
UNPRIVILEGED = ["setpriv", "--reuid", str(CHOSEN), "--regid", "0", "--clear-groups"]
NAME_OF_THE_USER = "org.apache.hadoop.security.UserGroupInformation"


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every user may write to, and whose `tini` runs its program."""
    with TemporaryDirectory() as folder:
        place = Path(folder)
        place.chmod(0o777)
        tini = place / "tini"
        tini.write_text('#!/bin/bash\nshift\nexec "$@"\n')
        tini.chmod(0o755)
        yield place


def login(place: Path, *program: str) -> subprocess.CompletedProcess[str]:
    """What Hadoop's login in Java says, run by the program, as a user without a name."""
    command = [*UNPRIVILEGED, *program, str(find_java()), "-cp", f"{spark_home()}/jars/*", NAME_OF_THE_USER]
    variables = {"PATH": f"{place}:/usr/bin:/bin", "TMPDIR": str(place)}
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


def spark_home() -> str:
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.submodule_search_locations
    return spec.submodule_search_locations[0]


def test_java_runs_as_a_user_that_the_platform_chose(place: Path) -> None:
    if os.geteuid() != 0 or shutil.which("setpriv") is None or not [*Path("/usr/lib").glob("*/libnss_wrapper.so")]:
        assert not os.environ.get("CI"), "CI runs as root, and installs libnss-wrapper"
        pytest.skip("needs root, setpriv and libnss-wrapper")
    without = login(place)
    assert "LoginException" in without.stderr, "it would need none of this"
    answer = login(place, str(ENTRYPOINT))
    assert answer.returncode == 0, answer.stderr
    assert "UGI: weir" in answer.stdout


def test_a_user_without_a_name_whom_the_image_cannot_give_one_is_told(path: str, tmp_path: Path) -> None:
    (tmp_path / "getent").write_text("#!/bin/bash\nexit 2\n")
    (tmp_path / "getent").chmod(0o755)
    (tmp_path / "tini").write_text('#!/bin/bash\necho "${LD_PRELOAD:-}"\n')
    answer = run(path, "weir --help", WEIR_LIBRARIES=str(tmp_path))
    assert (answer.returncode, answer.stdout.strip()) == (0, "")
    assert "has no libnss-wrapper to give it one: Java will not start" in answer.stderr


def test_a_user_with_a_name_keeps_it(path: str, tmp_path: Path) -> None:
    (tmp_path / "tini").write_text('#!/bin/bash\necho "${LD_PRELOAD:-} ${NSS_WRAPPER_PASSWD:-}"\n')
    assert run(path, "weir --help", TMPDIR=str(tmp_path)).stdout.strip() == ""
    assert not (tmp_path / "passwd").exists()


def test_while_weir_is_developed_the_code_is_where_it_can_be_changed_and_is_copied_there_once(
    path: str, tmp_path: Path
) -> None:
    image, code = tmp_path / "image", tmp_path / "code"
    (image / "jobs" / "__pycache__").mkdir(parents=True)
    (image / "jobs" / "run.py").write_text("of the image")
    code.mkdir()
    given = {"WEIR_CODE": str(code), "WEIR_IMAGE_CODE": str(image), "PYTHONDONTWRITEBYTECODE": "1"}
    tini = tmp_path / "tini"
    tini.write_text('#!/bin/bash\necho "$PYTHONPATH ${PYTHONDONTWRITEBYTECODE:-and compiles there}"\n')
    assert run(path, "weir status", **given).stdout.strip() == f"{code} and compiles there"
    assert (code / "jobs" / "run.py").read_text() == "of the image"
    assert not (code / "jobs" / "__pycache__").exists()
    (code / "jobs" / "run.py").write_text("changed")
    assert run(path, "weir status", **given).returncode == 0
    assert (code / "jobs" / "run.py").read_text() == "changed"


def test_while_weir_is_developed_the_folder_of_the_code_may_be_another_users(place: Path) -> None:
    """As a volume of a cluster is: everybody may write there, and only its owner change its mode or times."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        assert not os.environ.get("CI"), "CI runs as root"
        pytest.skip("needs root and setpriv")
    image, code = place / "image", place / "code"
    (image / "jobs").mkdir(parents=True)
    (image / "jobs" / "run.py").write_text("of the image")
    code.mkdir()
    code.chmod(0o777)
    variables = {"PATH": f"{place}:/usr/bin:/bin", "WEIR_CODE": str(code), "WEIR_IMAGE_CODE": str(image)}
    command = [*UNPRIVILEGED, str(ENTRYPOINT), "cat", f"{code}/jobs/run.py"]
    answer = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert (answer.stdout, answer.stderr) == ("of the image", "")
